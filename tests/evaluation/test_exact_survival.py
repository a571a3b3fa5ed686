"""Exact survival statistics: the values of lifelines 0.30.3 and scikit-survival 0.28.0 on the same
patients (neither installs beside the pinned pandas), and R's `survival` where Rscript is present."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from suture.evaluation.survival import (
    NAMES,
    brier,
    calibration,
    concordance,
    cox,
    integrated_brier,
    kaplan_meier,
    log_rank,
    measured,
)

GRID = np.linspace(0.2, 2.0, 10)


def patients(n=240, seed=7):
    """Covariates, times with ties, and events."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=n), rng.integers(0, 2, n), rng.uniform(-1, 1, n)])
    hidden = rng.exponential(1 / np.exp(0.7 * x[:, 0] - 0.5 * x[:, 1]))
    left = rng.uniform(0.2, 3.0, n)
    time = np.maximum(np.ceil(np.minimum(hidden, left) * 20) / 20, 0.05)
    return x, time, hidden <= left


X, TIME, EVENT = patients()


def test_cox_is_that_of_lifelines_and_scikit_survival():
    beta, covariance, value = cox(X, TIME, EVENT)
    # lifelines: CoxPHFitter; scikit-survival: CoxPHSurvivalAnalysis(ties="efron")
    expected = [0.6730323143720665, -0.6415482586317449, -0.03994005553231842]
    assert beta == pytest.approx(expected, abs=1e-9)
    assert value == pytest.approx(-638.5810788187049, abs=1e-9)
    errors = np.sqrt(np.diag(covariance))
    assert errors == pytest.approx(
        [0.1022414683172765, 0.17373109021808714, 0.167156646141798], abs=1e-9
    )


def test_a_step_too_far_is_halved():
    x = np.random.default_rng(1).standard_cauchy((len(TIME), 1)) * 100
    beta, _, value = cox(x, TIME, EVENT)
    assert np.isfinite(beta).all()
    assert np.isfinite(value)


def test_columns_that_say_the_same_are_refused():
    with pytest.raises(ValueError, match="one answer"):
        cox(np.column_stack([X[:, 0], X[:, 0]]), TIME, EVENT)


def test_kaplan_meier_is_that_of_lifelines():
    times, share = kaplan_meier(TIME, EVENT)
    at = np.searchsorted(times, [0.5, 1.0, 2.0], side="right") - 1
    expected = [0.6769808125575248, 0.4692728295450742, 0.24310982301421633]
    assert share[at] == pytest.approx(expected, abs=1e-12)


def test_the_log_rank_test_is_that_of_lifelines():
    found = log_rank(TIME, EVENT, X[:, 1].astype(int))
    assert found["statistic"] == pytest.approx(13.902253472628042, abs=1e-9)
    assert found["degrees"] == 1


def test_the_c_index_is_that_of_lifelines_with_equal_times_and_risks():
    found = concordance(TIME, EVENT, np.round(X[:, 0], 1))
    assert found == pytest.approx(0.661317215506461, abs=1e-12)
    assert concordance(TIME, np.zeros(len(TIME), bool), X[:, 0]) is None


def test_the_brier_score_is_that_of_scikit_survival():
    survival = np.exp(-GRID[None, :] * np.exp(0.6 * X[:, :1]))
    found = brier(TIME, EVENT, survival, GRID)
    assert found[[0, 4, 9]] == pytest.approx(
        [0.11502572086289216, 0.22213923077723308, 0.1545092192656415], abs=1e-12
    )
    whole = integrated_brier(TIME, EVENT, survival, GRID)
    assert whole == pytest.approx(0.19111780144741902, abs=1e-12)


def test_calibration_compares_mean_risks_with_kaplan_meier():
    risk = np.array([0.1, 0.1, 0.4, 0.4])
    time, event = np.array([5.0, 5, 1, 5]), np.array([False, False, True, False])
    found = calibration(time, event, risk, 5.0, groups=2)
    assert found == {"predicted": [0.1, 0.4], "observed": [0.0, 0.5], "count": [2, 2]}


def test_what_is_undefined_is_none_and_never_a_number():
    nobody = measured(np.zeros(0), np.zeros(0, bool), np.zeros((0, 3)), np.arange(1.0, 4))
    assert nobody == dict.fromkeys(NAMES)
    lost = measured(TIME, EVENT, np.full((len(TIME), 10), np.nan), GRID)
    assert lost == dict.fromkeys(NAMES)


R = """
library(survival)
d <- read.csv(commandArgs(TRUE)[1])
options(digits = 15)
fit <- coxph(Surv(time, event) ~ a + b + c, d, ties = "efron",
             control = coxph.control(eps = 1e-13, toler.chol = 1e-14, iter.max = 100))
km <- survfit(Surv(time, event) ~ 1, d)
lr <- survdiff(Surv(time, event) ~ b, d)
cat(sprintf('{"beta": [%s], "se": [%s], "loglik": %.15g, "km": [%s], "lr": %.15g, "c": %.15g}',
    paste(sprintf("%.15g", coef(fit)), collapse = ","),
    paste(sprintf("%.15g", sqrt(diag(vcov(fit)))), collapse = ","), fit$loglik[2],
    paste(sprintf("%.15g", km$surv), collapse = ","), lr$chisq,
    concordance(Surv(time, event) ~ a, d, reverse = TRUE)$concordance))
"""


@pytest.mark.slow
def test_r_agrees_with_cox_kaplan_meier_log_rank_and_the_c_index(tmp_path):
    if shutil.which("Rscript") is None:
        pytest.skip("Rscript is not there: apt-get install r-cran-survival")
    table, script = tmp_path / "p.csv", tmp_path / "r.R"
    columns = np.column_stack([X, TIME, EVENT])
    np.savetxt(table, columns, "%.17g", ",", header="a,b,c,time,event", comments="")
    script.write_text(R)
    run = ["Rscript", str(script), str(table)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if "no package called" in done.stderr:
        pytest.skip("R has no package survival: apt-get install r-cran-survival")
    found = json.loads(done.stdout)
    beta, covariance, value = cox(X, TIME, EVENT)
    assert beta == pytest.approx(found["beta"], abs=1e-6)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(found["se"], abs=1e-6)
    assert value == pytest.approx(found["loglik"], abs=1e-6)
    assert kaplan_meier(TIME, EVENT)[1] == pytest.approx(found["km"], abs=1e-6)
    statistic = log_rank(TIME, EVENT, X[:, 1].astype(int))["statistic"]
    assert statistic == pytest.approx(found["lr"], abs=1e-6)
    assert concordance(TIME, EVENT, X[:, 0]) == pytest.approx(found["c"], abs=1e-6)
