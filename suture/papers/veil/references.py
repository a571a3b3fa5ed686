"""Models that are neither private nor federated, for VEIL's table: boosted trees and logistic
regression, pooled and alone.

Pooled models train on the rows of all hospitals outside the fold and are tested on those inside, as
the federated ones are. "Alone" is what a hospital can do by itself: its own patients in five parts,
each scored by a regression on the other four.

scikit-learn, and LightGBM where it is there, come with ``pip install 'suture[baselines]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.cohort import Cohort
from suture.errors import MissingExtra
from suture.evaluation.metrics import binary, ece
from suture.evaluation.significance import grouped_folds
from suture.papers.reproduction import rows_of
from suture.privacy.unit import Patients
from suture.schema.record import Metrics

Floats = NDArray[np.float64]
Model = Any
"""A classifier of scikit-learn or LightGBM."""
ROUNDS, RATE, LEAVES, RIDGE = 300, 0.05, 15, 5.0
"""Settings of the boosted trees."""
PARTS = 5


class Reference(TypedDict):
    """One reference's label, and its metrics for each fold."""

    label: str
    folds: list[Metrics]


def learner(module: str, name: str) -> Callable[..., Model]:
    """A class of scikit-learn, or an error that says how to install it."""
    try:
        found: Callable[..., Model] = vars(import_module(f"sklearn.{module}"))[name]
    except ImportError:
        raise MissingExtra(
            "the pooled models in VEIL's table need scikit-learn: pip install 'suture[baselines]'"
        ) from None
    return found


def references(cohort: Cohort, seed: int, folds: int) -> list[Reference]:
    """Each reference, measured on whole hospitals that it did not see."""
    read = rows_of(cohort, scaling="bounds", key=str(seed))
    rows = {name: data.train for name, data in read.items()}
    parts = grouped_folds({name: data.patients for name, data in rows.items()}, folds, seed)
    alone = {name: _alone(data, seed) for name, data in rows.items()}
    label, make_trees = _trees()
    found: list[Reference] = [
        {"label": label, "folds": []},
        {"label": "Pooled logistic regression", "folds": []},
        {"label": "Logistic regression alone, within each hospital", "folds": []},
    ]
    for held in parts:
        inside = [data for name, data in rows.items() if name not in held]
        x, y = (np.concatenate([data.x for data in inside]), _outcomes(inside))
        tested = [rows[name] for name in held]
        xt, yt = (np.concatenate([data.x for data in tested]), _outcomes(tested))
        scores = [model.fit(x, y).predict_proba(xt)[:, 1] for model in (make_trees(), _logistic())]
        scores.append(np.concatenate([alone[name] for name in held]))
        for reference, p in zip(found, scores, strict=True):
            measured = {**binary(yt, p), "ece_mass": ece(yt, p, kind="mass"), "ece_at_site": None}
            reference["folds"].append(measured)
    return found


def _outcomes(data: list[Patients]) -> NDArray[np.int32]:
    return np.concatenate([one.y for one in data])


def _alone(data: Patients, seed: int) -> Floats:
    """Score a hospital's patients by models of its own other patients, or by the rate among those
    where they have too few outcomes for a model."""
    order = np.random.default_rng([seed, data.rows]).permutation(data.rows) % PARTS
    scores = np.zeros(data.rows)
    for part in range(PARTS):
        rest, here = order != part, order == part
        scores[here] = (data.y[rest].sum() + 0.5) / (rest.sum() + 1)
        if here.any() and len(np.unique(data.y[rest])) == 2:
            model = _logistic().fit(data.x[rest], data.y[rest])
            scores[here] = model.predict_proba(data.x[here])[:, 1]
    return scores


def _logistic() -> Model:
    return learner("linear_model", "LogisticRegression")(C=1.0, max_iter=300)


def _trees() -> tuple[str, Callable[[], Model]]:
    """LightGBM where it is installed, else scikit-learn's trees with the same settings."""
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        slow = learner("ensemble", "HistGradientBoostingClassifier")
        return "Pooled boosted trees (scikit-learn)", lambda: slow(
            max_iter=ROUNDS,
            learning_rate=RATE,
            max_leaf_nodes=LEAVES,
            l2_regularization=RIDGE,
            random_state=0,
        )
    return "Pooled boosted trees (LightGBM)", lambda: LGBMClassifier(
        n_estimators=ROUNDS,
        learning_rate=RATE,
        num_leaves=LEAVES,
        reg_lambda=RIDGE,
        random_state=0,
        verbose=-1,
        n_jobs=1,
    )
