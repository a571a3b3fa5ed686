"""Regression: scikit-learn's estimate without noise, intervals that cover with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from support.statistics import NOISE, public, run

from suture.errors import StudyError
from suture.privacy.unit import Patients
from suture.schema.table import Flag, Number, Schema
from suture.statistics.regression import STEPS, Regression, random_sites, symmetric, triangle
from suture.statistics.regression import tables as tables_of

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


SITES = Schema(
    patient="id",
    missing="refuse",
    features={
        "x0": Number(low=-4, high=4),
        "x1": Number(low=-4, high=4),
        "a": Flag(),
        "exposure": Number(low=0, high=4),
        "out": Number(low=-6, high=6),
        "count": Number(low=0, high=40),
    },
)


def at_sites(n=1500):
    """Five sites with intercepts of their own, and a number, a count and an outcome to explain."""
    rng = np.random.default_rng(4)
    x, flag = np.clip(rng.normal(size=(n, 2)), -4, 4).astype(np.float32), rng.random(n) < 0.3
    site = rng.integers(0, 5, n)
    own, exposure = np.array([-0.5, 0.3, 0.1, -0.2, 0.4])[site], np.round(rng.uniform(0.5, 3, n), 2)
    eta = -0.4 + 0.5 * x[:, 0] - 0.3 * x[:, 1] + 0.6 * flag + own
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.int32)
    out = np.clip(eta + rng.normal(size=n), -6, 6)
    count = np.clip(rng.poisson(exposure * np.exp(eta)), 0, 40)
    rows = np.column_stack([x / 4, flag, exposure / 2 - 1, out / 6, count / 20 - 1])
    found = {}
    for k in range(5):
        here = site == k
        patients = int(here.sum())
        found[f"s{k}"] = Patients(rows[here], y[here], np.arange(patients + 1), declared=patients)
    return found


def exactly(tables, **asked):
    sizes = {site: data.patients for site, data in tables.items()}
    one = Regression(public(sizes, SITES), 1.0, on=("x0", "x1", "a"), exact=True, **asked)
    found = one.figures(run(one, tables, None, one.rounds))
    return found, coefficients(found), [row["error"] for row in found["terms"].values()]


# statsmodels 0.14 on the same rows: GLM(Binomial), with and without indicators of the sites, OLS, and
# GLM(Poisson) with an offset of the logarithm of exposure.
STATSMODELS = {
    "logistic": (
        {},
        [-0.36084232, 0.42349698, -0.16850789, 0.52662377],
        [0.0647881, 0.05659056, 0.05392488, 0.11487499],
    ),
    "fixed sites": (
        {"sites": "fixed"},
        [
            -0.95540803,
            0.45129226,
            -0.17730303,
            0.51444102,
            0.91230655,
            0.74493853,
            0.3446322,
            0.99984113,
        ],
        [
            0.13225216,
            0.05782145,
            0.05487754,
            0.11707814,
            0.16984203,
            0.17869346,
            0.17242609,
            0.17819916,
        ],
    ),
    "linear": (
        {"family": "linear", "of": "out"},
        [-0.38629117, 0.47697565, -0.25688443, 0.57611101],
        [0.03296436, 0.02773289, 0.02732629, 0.05891274],
    ),
    "poisson": (
        {"family": "poisson", "of": "count", "offset": "exposure"},
        [-0.31856758, 0.438358, -0.29339538, 0.64789657],
        [0.02735021, 0.01923234, 0.01814231, 0.03767008],
    ),
}


@pytest.mark.parametrize("name", STATSMODELS)
def test_without_noise_and_weights_it_is_statsmodels_to_six_digits(name):
    asked, b, errors = STATSMODELS[name]
    _, found, own = exactly(at_sites(), **asked)
    assert found == pytest.approx(b, abs=1e-6)
    assert own == pytest.approx(errors, abs=1e-6)


def test_random_sites_are_those_of_a_mixed_model():
    """MixedLM of statsmodels 0.14, restricted maximum likelihood. It estimates the variance of rows
    together with that of sites; here it is known from the first stage, hence the fourth digit."""
    found, b, errors = exactly(at_sites(), family="linear", of="out", sites="random")
    assert b == pytest.approx([-0.37312119, 0.48720777, -0.25953559, 0.55350937], abs=1e-5)
    assert errors == pytest.approx([0.16270467, 0.02648361, 0.02606575, 0.05628783], abs=1e-4)
    assert found["site_deviation"] == pytest.approx(0.35692271, abs=1e-3)
    assert "standard deviation of 0.357" in tables_of(found)[0].remark


def test_random_sites_that_do_not_differ_have_no_deviation():
    b, spread = np.array([1.0, 0.5, 0.0, 0.0]), np.eye(4) * 0.01
    mean, inner, apart = random_sites(b, spread, 3)
    assert apart == 0.0
    assert mean == pytest.approx([1.0, 0.5])
    assert inner[1, 1] == pytest.approx(0.01)


def test_exact_sums_are_refused_under_a_promise():
    one = statistic(10, exact=True)
    with pytest.raises(StudyError, match="without a promise"):
        one.site_step(SimpleNamespace(noise=1.0), {}, {})


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
    mean = np.mean(ratio, axis=0)
    assert mean.max() <= 2.4
    if (family, epsilon) == ("logistic", 1.0):
        said = f"standard errors at epsilon 1 are {mean.min():.1f} to {mean.max():.1f} times"
        page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
        assert said in page


def test_too_little_is_withheld():
    data, _, _ = draw(60, np.random.default_rng(2), "logistic")
    one = statistic(60).planned(NOISE[0.5])
    assert one.figures(run(one, {"s": data}, np.random.default_rng(3), STEPS + 2))["withheld"]


def test_mistakes_are_named():
    with pytest.raises(StudyError, match="--of"):
        _ = Regression(public({"s": 1}, SCHEMA), family="linear", on=ON)._outcome
    with pytest.raises(StudyError, match="'weight' is not a declared column"):
        _ = Regression(public({"s": 1}, SCHEMA), on=("weight",)).covariates
