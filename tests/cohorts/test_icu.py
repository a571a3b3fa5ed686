"""The generated intensive care federation: what the paper prints of its data, and what makes it
hard."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, rankdata

from suture.cohorts import load
from suture.cohorts.icu import READ, STATISTICS, VITALS
from suture.errors import DataError, StudyError
from suture.models.concepts import dictionary
from suture.schema.table import Number
from suture.site.cohort import load as load_site
from suture.site.eicu import data_folder, stays

COHORT = load("icu", 11)


def column(name):
    return np.concatenate([site.table[name] for site in COHORT.sites])


def test_what_the_paper_prints():
    assert len(COHORT.sites) == 152
    assert COHORT.schema.width == 90
    assert np.mean(column("died_in_hospital")) == pytest.approx(0.089, abs=0.006)
    assert COHORT.generated


def test_hospitals_are_of_very_different_size_and_outcome():
    sizes = np.array([len(site.table["age"]) for site in COHORT.sites])
    assert sizes.min() == 30
    assert sizes.max() > 4000
    large = [site for site in COHORT.sites if len(site.table["age"]) > 400]
    rates = np.array([np.mean(site.table["died_in_hospital"]) for site in large])
    expected = np.sqrt(np.mean([0.089 * 0.911 / len(site.table["age"]) for site in large]))
    assert np.std(rates) > 1.5 * expected  # more than chance: hospital effects and case mix


def test_marginals_and_missingness_are_the_demos():
    """The draws against the file that the generator reads: a wrong quantile map, a clip or a shift
    that moves the whole would show. 76,000 patients: the Monte Carlo error is below a tenth of
    every tolerance."""
    for name in READ:
        about, value = STATISTICS[name], column(f"{name}_mean" if name in VITALS else name)
        assert np.mean(np.isnan(value)) == pytest.approx(about["missing"], abs=0.03), name
        middle, low, high = np.nanquantile(value, [0.5, 0.05, 0.95])
        width = about["q95"] - about["q5"]
        assert middle == pytest.approx(about["q50"], abs=0.05 * width), name
        assert low == pytest.approx(about["q5"], abs=0.1 * width), name
        assert high == pytest.approx(about["q95"], abs=0.3 * width), name  # the ill are tested more


def test_signs_alone_tell_as_much_as_in_the_demo():
    died = column("died_in_hospital") == 1
    for name in READ:
        value = column(f"{name}_mean" if name in VITALS else name)
        known = np.isfinite(value)
        ranks, dead = rankdata(value[known]), died[known]
        auc = (ranks[dead].mean() - (dead.sum() + 1) / 2) / (~dead).sum()
        assert auc == pytest.approx(STATISTICS[name]["auc"], abs=0.025), name
    assert STATISTICS["spo2"]["auc"] == 0.5


def test_correlations_are_the_demos():
    names = [name for name in READ if name != "mean_bp"]
    for one, other in combinations(names, 2):
        a, b = (column(f"{name}_mean" if name in VITALS else name) for name in (one, other))
        both = np.isfinite(a) & np.isfinite(b)
        r = np.corrcoef(rankdata(a[both]), rankdata(b[both]))[0, 1]
        wanted = 6 / np.pi * np.arcsin(STATISTICS[one][f"with {other}"] / 2)
        assert r == pytest.approx(wanted, abs=0.08), (one, other)


def test_mean_pressure_lies_between_diastolic_and_systolic():
    for key in ("mean", "min", "max"):
        low, mean, high = (column(f"{name}_bp_{key}") for name in ("diastolic", "mean", "systolic"))
        known = np.isfinite(low)
        assert (mean[known] > low[known]).mean() > 0.99  # equal where a bound cuts both
        assert np.all((mean[known] >= low[known]) & (mean[known] <= high[known])), key
    for name in VITALS:
        low, mean, high = (column(f"{name}_{key}") for key in ("min", "mean", "max"))
        known = np.isfinite(mean)
        assert np.all((low[known] <= mean[known]) & (mean[known] <= high[known])), name


def test_the_statistics_are_those_of_the_demo():
    """Where the demo is: medians, missingness and AUC of its own rows, by another route."""
    try:
        real = stays(data_folder("eicu_demo"))
    except DataError as error:
        pytest.skip(str(error))
    died = real["died_in_hospital"].astype(bool)
    for name in READ:
        value = real[f"{name}_mean" if name in VITALS else name].astype(float)
        known = np.isfinite(value)
        assert STATISTICS[name]["missing"] == pytest.approx(1 - known.mean(), abs=0.001)
        assert STATISTICS[name]["q50"] == pytest.approx(np.median(value[known]), abs=0.001)
        pairs = mannwhitneyu(value[known & died], value[known & ~died]).statistic
        auc = pairs / ((known & died).sum() * (known & ~died).sum())
        assert abs(STATISTICS[name]["auc"] - 0.5) <= abs(auc - 0.5) + 0.001  # drawn to 0.5
        assert (STATISTICS[name]["auc"] - 0.5) * (auc - 0.5) >= 0


def test_tests_are_missing_more_often_in_some_hospitals_and_less_often_in_the_ill():
    lactate, died = column("lactate"), column("died_in_hospital")
    assert np.mean(np.isnan(lactate[died == 1])) < np.mean(np.isnan(lactate[died == 0])) - 0.03
    shares = [
        np.mean(np.isnan(site.table["lactate"]))
        for site in COHORT.sites
        if len(site.table["age"]) > 300
    ]
    assert np.ptp(shares) > 0.4


def test_risk_bends():
    """Death is more frequent at both ends of temperature than in the middle: no straight line has
    that."""
    known = np.isfinite(column("temperature_mean"))
    value, died = column("temperature_mean")[known], column("died_in_hospital")[known]
    low, high = np.quantile(value, [0.05, 0.95])
    middle = np.mean(died[(value > np.quantile(value, 0.4)) & (value < np.quantile(value, 0.6))])
    assert np.mean(died[value < low]) > 1.5 * middle
    assert np.mean(died[value > high]) > 1.5 * middle


def test_protected_attributes_are_declared_and_have_no_effect_of_their_own():
    features = COHORT.schema.features
    assert [name for name, f in features.items() if f.protected] == ["sex", "ethnicity"]
    assert {"teaching", "region", "beds", "unit_type", "source"} == {
        name for name, f in features.items() if f.proxy
    }
    died, sex = column("died_in_hospital"), column("sex")
    assert np.mean(died[sex == "F"]) == pytest.approx(np.mean(died[sex == "M"]), abs=0.008)


def test_every_number_has_a_label_and_a_clinical_declaration():
    for name, feature in COHORT.schema.features.items():
        assert feature.label, name
        if isinstance(feature, Number):
            assert feature.normal or feature.thresholds, name
    names = [concept.name for concept in dictionary(COHORT.schema).items]
    assert "Respiratory rate, highest, high (> 25 /min)" in names
    assert len(names) == len(set(names)) == 251


def test_every_site_loads_without_a_clipped_value():
    for site in COHORT.sites[:6]:
        data = load_site(
            site.table, COHORT.schema, COHORT.outcome, site=site.name, holdout=0.0, split_key="1"
        )
        assert not data.loaded.clipped
        assert data.train.patients == len(site.table["age"])


def test_the_same_seed_gives_the_same_patients_and_test_patients_are_fresh():
    again, other = (
        load("icu", 11, hospitals=4, patients=400),
        load("icu", 12, hospitals=4, patients=400),
    )
    small = load("icu", 11, hospitals=4, patients=400, test_fraction=0.5)
    assert np.array_equal(
        again.sites[0].table["lactate"],
        load("icu", 11, hospitals=4, patients=400).sites[0].table["lactate"],
        equal_nan=True,
    )
    assert not np.array_equal(again.sites[0].table["age"], other.sites[0].table["age"])
    for site in small.sites:
        assert len(site.test["age"]) == round(0.5 * len(site.table["age"]))
        assert not set(site.test["patient_id"]) & set(site.table["patient_id"])


def test_options_are_checked():
    with pytest.raises(StudyError, match="1 <= hospitals <= patients"):
        load("icu", 1, hospitals=10, patients=5)
    with pytest.raises(StudyError, match=r"test_fraction.* 0 to 10"):
        load("icu", 1, test_fraction=11.0)
