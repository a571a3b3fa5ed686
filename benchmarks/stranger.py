"""The recommended method as a newcomer would run it, on two tables that played no part in its
development: docs/additive.md, section 4.

    python benchmarks/stranger.py

The tables are those of SurvSet 0.2.11 (PyPI; unpacked where SURVSET says) that are clinical, have at
least 2,000 patients and the most columns, without those that were developed on (`rhc`, `flchain`,
Framingham) and without `support2`, which others keep aside: `smarto` (3,873 patients with vascular
disease; an event within three years) and `rott2` (2,982 with breast cancer; death within five).
`suture init --from TABLE --bounds-from-rows --deal 5` drafts the study; of it only epsilon (1) and the
seed are changed. Exact logistic regression gets the rows as Suture encodes and splits them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from additive import interval, survset
from sklearn.linear_model import LogisticRegression

import suture
from suture.engine import federation
from suture.evaluation.metrics import binary, ece
from suture.models.concepts import terms
from suture.study import Study

DAYS = {"smarto": 1095.0, "rott2": 60.0}
"""Until when the outcome counts, in the table's unit (days; months)."""


def drafted(name: str, folder: Path) -> Study:
    """The study that `suture init` drafts from a table."""
    frame = survset(name, DAYS[name], ())
    numbers = {c.removeprefix("num_") for c in frame.columns if c.startswith("num_")}
    frame = frame.drop(columns=[f"fac_{c}" for c in numbers if f"fac_{c}" in frame.columns])
    frame = frame.rename(columns=lambda c: c.removeprefix("num_").removeprefix("fac_"))
    frame.to_csv(folder / "rows.csv", index=False)
    order = [sys.executable, "-m", "suture", "init", str(folder / "study")]
    order += ["--from", str(folder / "rows.csv"), "--outcome", "outcome", "--patient", "patient"]
    subprocess.run([*order, "--bounds-from-rows", "--deal", "5"], check=True, capture_output=True)
    print(f"{name}: {len(frame)} patients, {frame['outcome'].mean():.3f} with the outcome")
    return Study.from_toml(folder / "study" / "study.toml")


def exact(study: Study, base: Path) -> dict[str, float]:
    """Exact logistic regression on the same terms and the same split."""
    here = federation.survey(study, base, study.seed)
    found = [federation.load_site(study, here, place) for place in here.places]
    known = terms(here.schema)
    x, y = (np.concatenate([getattr(one.train, key) for one in found]) for key in "xy")
    tested = [one.test for one in found if one.test is not None]
    q, truth = (np.concatenate([getattr(one, key) for one in tested]) for key in "xy")
    fit = LogisticRegression(max_iter=2000).fit(known.matrix(x), y)
    p = fit.predict_proba(known.matrix(q))[:, 1]
    return {"auc": float(binary(truth, p)["auc"] or 0), "ece": ece(truth, p, kind="mass") or 0.0}


def main() -> None:
    """Print one line for each table and arm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for name in DAYS:
        with tempfile.TemporaryDirectory() as folder:
            draft, base = drafted(name, Path(folder)), Path(folder, "study")
            ours, theirs = [], []
            for seed in range(asked.seeds):
                study = draft.replace(seed=seed, privacy={"epsilon": asked.epsilon})
                told = suture.run(study, base=base).data
                figures = told["methods"][told["method"]]["metrics"]["global"]
                ours.append({"auc": figures["auc"], "ece": figures["ece_mass"]})
                theirs.append(exact(study, base))
        print(f"{name}: the study's method is {told['method']}")
        for arm, found in (("recommended", ours), ("exact logistic", theirs)):
            auc, error = (interval([one[key] for one in found]) for key in ("auc", "ece"))
            print(f"| {name} | {arm} | {auc} | {error} |", flush=True)
        gaps = [
            interval([a[key] - b[key] for a, b in zip(ours, theirs, strict=True)])
            for key in ("auc", "ece")
        ]
        print(f"| {name} | recommended less exact | {gaps[0]} | {gaps[1]} |", flush=True)


if __name__ == "__main__":
    main()
