"""Regression: scikit-learn's estimate without noise, intervals that cover with it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from support.statistics import NOISE, public, run

from suture.errors import StudyError
from suture.privacy.unit import Patients
from suture.schema.table import Flag, Number, Schema
from suture.statistics.regression import STEPS, Regression, symmetric, triangle

FEATURES = {
    **{f"x{i}": Number(low=-4, high=4) for i in range(5)},
    "a": Flag(),
    "b": Flag(),
    "rare": Flag(),
    "out": Number(low=-6, high=6),
}
SCHEMA = Schema(patient="id", missing="refuse", features=FEATURES)
ON = tuple(name for name in FEATURES if name != "out")
TRUE = np.array([-1.0, 0.5, -0.3, 0.0, 0.2, 0.4, 0.5, -0.4, 0.6])


def draw(n, rng, family):
    x = rng.normal(size=(n, 5))
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x = np.clip(x, -4, 4)
    flags = rng.random((n, 3)) < (0.5, 0.3, 0.08)
    design = np.column_stack([np.ones(n), x, flags])
    eta = design @ TRUE
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int32)
    out = np.clip(eta + rng.normal(size=n), -6, 6)
    encoded = np.column_stack([x / 4, flags, out / 6]).astype(np.float32)
    return (
        Patients(encoded, y, np.arange(n + 1), declared=n),
        design,
        y if family == "logistic" else out,
    )


def statistic(n, family="logistic", **more):
    of = "out" if family == "linear" else ""
    return Regression(public({"s": n}, SCHEMA), 1.0, family=family, of=of, on=ON, **more)


def coefficients(found):
    return np.array([row["coefficient"] for row in found["terms"].values()])


def test_without_noise_it_is_the_weighted_maximum_likelihood():
    data, design, y = draw(4000, np.random.default_rng(1), "logistic")
    one = statistic(4000)
    state = run(one, {"s": data}, None, STEPS + 2)
    # The same weights, by hand, from the released centre and lengths.
    x = design.copy()
    x[:, 1:6] *= 1.0  # a public deviation is a quarter of the half width: 1 here
    x = (x - state["centre"]) * state["length"]
    x[:, 0] = 1
    weights = np.minimum(1, len(TRUE) / (x**2).sum(axis=1))
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    reference.fit(design[:, 1:], y, sample_weight=weights)
    expected = np.concatenate([reference.intercept_, reference.coef_[0]])
    assert coefficients(one.figures(state)) == pytest.approx(expected, abs=0.02)


def test_a_triangle_has_frobenius_norm():
    row = np.array([[1.0, -2.0, 3.0]])
    assert np.linalg.norm(triangle(row)) == pytest.approx(14.0)
    assert symmetric(triangle(row)[0], 3) == pytest.approx(np.outer(row, row))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "epsilon"), [("logistic", 1.0), ("logistic", 4.0), ("linear", 1.0)]
)
def test_intervals_cover_and_are_not_wide(family, epsilon):
    """400 studies of 5,000 patients, 9 coefficients: a true 95 % gives a mean cover outside 93.5 to
    96.5 % with probability below 0.001 (errors of one study are correlated; 0.4 % standard error)."""
    rng = np.random.default_rng(8)
    one = statistic(5000, family).planned(NOISE[epsilon])
    cover, ratio = [], []
    for _ in range(400):
        data, design, _ = draw(5000, rng, family)
        found = one.figures(run(one, {"s": data}, rng, STEPS + 2))["terms"].values()
        ends = np.array([row["interval"] for row in found])
        cover.append((ends[:, 0] <= TRUE) & (ends[:, 1] >= TRUE))
        p = 1 / (1 + np.exp(-design @ TRUE))
        curve = p * (1 - p) if family == "logistic" else np.ones(len(p))
        exact = np.sqrt(np.diag(np.linalg.inv((design * curve[:, None]).T @ design)))
        ratio.append(np.array([row["error"] for row in found]) / exact)
    assert 0.93 <= np.mean(cover) <= 0.975
    assert np.mean(ratio, axis=0).max() <= 2.4


def test_too_little_is_withheld():
    data, _, _ = draw(60, np.random.default_rng(2), "logistic")
    one = statistic(60).planned(NOISE[0.5])
    assert one.figures(run(one, {"s": data}, np.random.default_rng(3), STEPS + 2))["withheld"]


def test_mistakes_are_named():
    with pytest.raises(StudyError, match="--of"):
        _ = Regression(public({"s": 1}, SCHEMA), family="linear", on=ON)._outcome
    with pytest.raises(StudyError, match="'weight' is not a declared column"):
        _ = Regression(public({"s": 1}, SCHEMA), on=("weight",)).covariates
