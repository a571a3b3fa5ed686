"""A federation over a network, and which engine runs a study.

| module | what it does | side |
|---|---|---|
| `coordinator` | drives rounds at sites that are elsewhere, over a carrier | coordinator |
| `local` | a carrier that starts a hub and its sites on this machine | coordinator |
| `hub`, `enrolment` | Flower's SuperLink with a guard in front; who is known there | hub |
| `node`, `settings` | what answers requests; the site's own decisions | site |
| `masking`, `witnesses` | sums under masks; peers that remember a ledger | coordinator and site |
| `wire` | what can be said | coordinator and site |
| `certificates`, `flower` | keys; connections, the only module that imports Flower | all |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.engine.round import Engine

ENGINES = ("embedded", "flower")


def engine_of(
    name: str | None,
    hub: Path | None,
    threads: int | None = None,
    run: Path | None = None,
    *,
    unchecked: bool = False,
) -> Engine:
    """The engine that the command line names; a run that is resumed goes on where it began.
    ``unchecked``: sites on this machine need nobody's word that their tables are ready.

    >>> engine_of(None, None).name
    'embedded'
    >>> engine_of("ray", None)
    Traceback (most recent call last):
    suture.errors.StudyError: engine 'ray' is not known; expected one of: embedded, flower
    """
    if name is None and hub is None and run is not None:
        name, hub = _recorded(run)
    if name not in (None, *ENGINES):
        raise StudyError(f"engine {name!r} is not known; expected one of: {', '.join(ENGINES)}")
    if hub is None and name in (None, "embedded"):
        from suture.engine.embedded import Embedded

        return Embedded(threads, unchecked=unchecked)
    if hub is not None and name == "embedded":
        raise StudyError("--hub goes with --engine flower: the embedded engine has no network")
    from suture.network.coordinator import Remote

    if hub is None:
        from suture.network.local import LocalFlower

        return Remote(LocalFlower({"ready_needed": not unchecked}))
    if unchecked:
        raise StudyError(
            "--unchecked is for sites on this machine; behind a hub every site decides for itself "
            "(ready_needed in its site.toml)"
        )
    from suture.network.flower import Flower, Hub
    from suture.network.hub import read_operator

    recorded = {"engine": "flower", "hub": str(hub.resolve())}
    return Remote(Flower(Hub(read_operator(hub))), recorded)


def _recorded(run: Path) -> tuple[str | None, Path | None]:
    """Where an earlier part of a run took place."""
    try:
        found = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, None  # whoever opens the run's folder says what is wrong with it
    return found.get("engine"), Path(found["hub"]) if found.get("hub") else None
