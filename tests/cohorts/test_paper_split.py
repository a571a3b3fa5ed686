"""The split of iFedAvg: 33 % and at least 100, within classes; and where it is refused."""

import numpy as np
import pytest

from suture.cohorts import load
from suture.cohorts.outbreak import DIAGNOSIS, FAMILIES, stranger
from suture.engine.federation import survey
from suture.errors import StudyError
from suture.study import Study


def test_sizes_and_shares_of_the_paper_split():
    whole, split = (load("outbreak", 3, split=split) for split in ("hash", "paper"))
    for before, after in zip(whole.sites, split.sites, strict=True):
        held = len(after.test["age"])
        assert held == max(100, int(0.33 * DIAGNOSIS[before.name][0]))
        assert len(after.table["age"]) + held == DIAGNOSIS[before.name][0]
        together = {*after.table["patient_id"], *after.test["patient_id"]}
        assert together == {*before.table["patient_id"]}
        assert abs(after.test["outcome"].mean() - before.table["outcome"].mean()) < 1 / held


def test_the_split_is_refused_under_privacy(tmp_path):
    study = Study(
        name="x", outcome="outcome", cohort={"name": "outbreak", "split": "paper", "test_fraction": 0.0},
        privacy={"unit": "patient", "epsilon": 1.0},
    )  # fmt: skip
    with pytest.raises(StudyError, match="shuffles"):
        survey(study, tmp_path, 1)


def test_an_unknown_split_and_two_splits_at_once_are_refused():
    with pytest.raises(StudyError, match=r'split.*"hash".*"paper"'):
        load("outbreak", 1, split="thirds")
    with pytest.raises(StudyError, match="test_fraction = 0"):
        load("outbreak", 1, split="paper", test_fraction=0.3)


@pytest.mark.parametrize("family", FAMILIES)
def test_strangers_are_standardised_laws(family):
    made = stranger(2, family, sites=8)
    one = np.concatenate(
        [site.table["number 1"][site.table["outcome"] == 0] for site in made.sites]
    )
    assert np.nanmean(one) == pytest.approx(20, abs=1.0)
    assert np.nanstd(one) == pytest.approx(4, rel=0.5 if family == "heavy" else 0.2)
    assert np.isnan(one).mean() == pytest.approx(0.06, abs=0.03)
