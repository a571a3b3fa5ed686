"""Something to start from: an example study, and example hospitals as files a user can open."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from suture import cohorts
from suture.errors import RunError
from suture.study import Study

COMMENTED = """# A Suture study. Every setting is explained in docs/study.md.
[study]
name = "cardio"
outcome = "high_risk"
seed = 42
cohort = "cardio"              # generated patients; replace by [[site]] tables and a [schema] for your own files

[model]
hidden = [64, 32]              # [] is logistic regression

[method]
name = "fedadam"
rounds = 40
local_epochs = 2

[privacy]                      # without this table there is no differential privacy, and every output says so
unit = "patient"
epsilon = 8.0
delta = 1e-5
accountant = "pld"
clip = 1.0

[evaluation]
holdout = 0.2
seeds = 1
compare = ["fedavg", "alone"]
"""


def write_starter(folder: Path, *, files: bool, patients: int) -> list[Path]:
    """Write ``study.toml`` and, with ``files``, one CSV a hospital; refuses to overwrite. Returns the paths."""
    targets = [folder / "study.toml"]
    study: Study | None = None
    if files:
        cohort = cohorts.load("cardio", 42, patients=patients)
        targets += [folder / f"{site.name}.csv" for site in cohort.sites]
        study = Study(
            name="cardio-files",
            outcome=cohort.outcome,
            sites=[{"name": site.name, "region": site.region, "data": f"{site.name}.csv"} for site in cohort.sites],
            schema=cohort.schema,
            method={"rounds": 40, "local_epochs": 2},
            privacy={"unit": "patient", "epsilon": 8.0},
        )
    there = [path for path in targets if path.exists()]
    if there:
        raise RunError(f"{there[0]} exists already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    if study is None:
        targets[0].write_text(COMMENTED, encoding="utf-8")
        return targets
    for path, site in zip(targets[1:], cohort.sites, strict=True):
        names = list(site.table)
        rows = np.column_stack([np.asarray(site.table[name]).astype(str) for name in names])
        text = "\n".join([",".join(names), *(",".join(row) for row in rows.tolist())])
        path.write_text(text + "\n", encoding="utf-8")
    targets[0].write_text(study.to_toml(), encoding="utf-8")
    return targets
