"""Models that are neither private nor federated, for VEIL's table: boosted trees and logistic regression, pooled and alone.

Pooled models train on the rows of all hospitals outside the fold and are tested on those inside, as the federated ones are.
"Alone" is what a hospital can do by itself: its own patients in five parts, each scored by a regression on the other four.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suture import cohorts
from suture.evaluation.calibration import ece
from suture.evaluation.metrics import binary
from suture.evaluation.resampling import grouped_folds
from suture.privacy.unit import Patients
from suture.site.cohort import load

TREES: dict[str, Any] = {"n_estimators": 300, "learning_rate": 0.05, "num_leaves": 15, "reg_lambda": 5.0}
RIDGE = 1.0
PARTS = 5


def rows_of(cohort: Mapping[str, Any], seed: int) -> dict[str, Patients]:
    """Every hospital's encoded rows."""
    options = {key: value for key, value in cohort.items() if key != "name"}
    made = cohorts.load(str(cohort["name"]), seed, **options)
    return {
        site.name: load(site.table, made.schema, made.outcome, site=site.name, holdout=0.0, split_key=str(seed)).train
        for site in made.sites
    }


def references(cohort: Mapping[str, Any], seed: int, folds: int) -> list[dict[str, Any]]:
    """Label and metrics by fold of each reference."""
    rows = rows_of(cohort, seed)
    sizes = {name: data.patients for name, data in rows.items()}
    parts = grouped_folds(sizes, folds, seed)
    found: list[dict[str, Any]] = [
        {"label": label, "folds": []} for label in (_trees()[1], "Pooled logistic regression")
    ]
    found.append({"label": "Logistic regression alone, within each hospital", "folds": []})
    alone = {name: _alone(data, seed) for name, data in rows.items()}
    for out in parts:
        inside = [name for name in rows if name not in out]
        x, y = (np.concatenate([getattr(rows[name], part) for name in inside]) for part in ("x", "y"))
        xt, yt = (np.concatenate([getattr(rows[name], part) for name in out]) for part in ("x", "y"))
        for i, model in enumerate((_trees()[0], _logistic())):
            found[i]["folds"].append(_measure(yt, model.fit(x, y).predict_proba(xt)[:, 1]))
        found[2]["folds"].append(_measure(yt, np.concatenate([alone[name] for name in out])))
    return found


def _measure(y: Any, p: Any) -> dict[str, Any]:
    return {**binary(y, p), "ece_mass": ece(y, p, kind="mass"), "ece_at_site": None}


def _alone(data: Patients, seed: int) -> Any:
    """A hospital's patients scored by models of its own other patients; by their rate where they have too few outcomes."""
    order = np.random.default_rng([seed, data.rows]).permutation(data.rows) % PARTS
    scores = np.zeros(data.rows)
    for part in range(PARTS):
        rest, here = order != part, order == part
        scores[here] = (data.y[rest].sum() + 0.5) / (rest.sum() + 1)
        if here.any() and len(np.unique(data.y[rest])) == 2:
            scores[here] = _logistic().fit(data.x[rest], data.y[rest]).predict_proba(data.x[here])[:, 1]
    return scores


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=RIDGE, max_iter=300)


def _trees() -> tuple[Any, str]:
    """LightGBM where it is installed, else scikit-learn's."""
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        from sklearn.ensemble import HistGradientBoostingClassifier

        settings = {"max_iter": 300, "learning_rate": 0.05, "max_leaf_nodes": 15, "l2_regularization": 5.0}
        return HistGradientBoostingClassifier(**settings, random_state=0), "Pooled boosted trees (scikit-learn)"
    return LGBMClassifier(**TREES, random_state=0, verbose=-1, n_jobs=1), "Pooled boosted trees (LightGBM)"
