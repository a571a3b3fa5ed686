"""How long the whole of paper 001's Table 7 takes: six methods, five seeds, 100 rounds, the true hospital sizes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.bench.flower import cores

if TYPE_CHECKING:
    from suture.study import Study

QUICK_ROUNDS = 10


def table(*, quick: bool = False) -> Study:
    """Table 7 as `suture reproduce fedcvr` runs it, without the reference "alone", which is not in the table.

    >>> study = table()
    >>> len(study.methods), study.evaluation.seeds, study.method.rounds
    (6, 5, 100)
    """
    from suture.reproduce import fedcvr

    study = fedcvr.study(1.0)
    compare = [name for name in fedcvr.ORDER if name != fedcvr.LEAD]
    changed = study.replace(evaluation={"compare": compare})
    if quick:
        return changed.replace(method={"rounds": QUICK_ROUNDS}, evaluation={"seeds": 1})
    return changed


def measure(
    *, quick: bool = False, say: Callable[[str], None] = lambda _: None, study: Study | None = None
) -> dict[str, Any]:
    """Wall-clock seconds from study to finished run folder: patients, noise planning, training, metrics, report.

    Quick runs a fiftieth of the rounds; multiplying that up is an estimate, so it has a name of its own and
    ``fedcvr_table_seconds`` stays None.
    """
    from suture import conduct

    whole, wanted = table(), study or table(quick=quick)
    share = (whole.method.rounds * whole.evaluation.seeds) / (wanted.method.rounds * wanted.evaluation.seeds)
    say(f"Table 7: {len(wanted.methods)} methods, {wanted.evaluation.seeds} seeds, {wanted.method.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="suture-") as folder:
        begun = time.perf_counter()
        result = conduct.run(wanted, out=Path(folder) / "run", threads=cores())
        seconds = time.perf_counter() - begun
    found: dict[str, Any] = {
        "fedcvr_table_seconds": seconds if share == 1 else None,
        "seconds": seconds,
        "methods": list(wanted.methods),
        "seeds": wanted.evaluation.seeds,
        "rounds": wanted.method.rounds,
        "auc": {name: result.data["methods"][name]["metrics"]["global"]["auc"] for name in wanted.methods},
        "cores": cores(),
    }
    if share != 1:
        found["seconds_scaled_to_all_rounds_and_seeds"] = seconds * share
    return found
