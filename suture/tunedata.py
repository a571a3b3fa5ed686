"""The rows that a search on a published set may see: those of the study's test patients are taken out first.

Only for sets that anybody can download: their rows are written, without the test patients, into a scratch folder that is
removed after the search, with ledgers of their own, so that nothing is charged to a real one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from suture import cohorts
from suture.errors import StudyError
from suture.site.split import hashed, held_out, row_keys
from suture.study import Study

PUBLIC = ("heart", "har", "vsn")
REAL = (*PUBLIC, "eicu")
"""Federations of real people; whether any other is generated, the federation says itself."""


def without_tested(study: Study, scratch: Path) -> Study:
    """The same study on files in ``scratch`` that hold its training patients only."""
    import pandas as pd

    if study.cohort is None:
        raise StudyError("only a built-in federation can be searched on")
    if study.evaluation.folds:
        raise StudyError(
            f"evaluation.folds: with folds every hospital of {study.cohort.name!r} is tested on, so no patient is left to tune "
            "on. Set folds = 0, which holds out patients"
        )
    cohort = cohorts.load(study.cohort.name, study.seed, **study.cohort.options())
    schema, sites = study.table or cohort.schema, []
    for i, site in enumerate(cohort.sites):
        table = pd.DataFrame(site.table)
        if site.test is None:
            key, ids = str(study.seed), schema.patient
            known = row_keys(len(table), key) if ids is None else hashed([str(v) for v in table[ids]], key)
            table = table[~held_out(known, study.evaluation.holdout)]
        path = scratch / f"site-{i}.csv"
        table.to_csv(path, index=False)
        sites.append({"name": site.name, "region": site.region, "data": str(path)})
    fields = {
        key: value for key, value in study.to_dict().items() if key not in ("cohort", "schema", "classes", "sites")
    }
    labels = study.classes or (cohort.classes if isinstance(cohort.classes, tuple) else ())
    holdout = study.evaluation.holdout or 0.2
    fields["evaluation"] = {**fields["evaluation"], "holdout": float(np.round(holdout, 6))}
    return Study(
        **fields,
        sites=sites,
        schema=schema.model_dump(mode="json", by_alias=True, exclude_none=True),
        **({"classes": labels} if labels else {}),
    )
