"""PneumoniaMNIST dealt out to hospitals: every picture once, official parts as given."""

import numpy as np
import pytest

from suture.cohorts.public import pneumonia
from suture.errors import DataError, StudyError
from suture.site.cohort import load


@pytest.fixture(scope="module", autouse=True)
def _present():
    try:
        pneumonia(0, hospitals=1)
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("split", ["iid", "label", "scanner"])
def test_every_picture_once(split) -> None:
    cohort = pneumonia(1, split=split)
    train = np.concatenate([site.table["patient_id"] for site in cohort.sites])
    test = np.concatenate([site.test["patient_id"] for site in cohort.sites])
    assert len(train) == len(set(train)) == 4708
    assert len(test) == len(set(test)) == 624
    assert sum(int(site.table["pneumonia"].sum()) for site in cohort.sites) == 3494
    assert sum(int(site.test["pneumonia"].sum()) for site in cohort.sites) == 390
    assert not cohort.generated


def test_splits_differ_as_they_say() -> None:
    even, skewed, looks = (pneumonia(1, split=split) for split in ("iid", "label", "scanner"))

    def shares(cohort):
        return np.array([site.table["pneumonia"].mean() for site in cohort.sites])

    assert shares(even).std() < 0.03 < 0.2 < shares(skewed).std()
    assert min(len(site.table["pneumonia"]) for site in skewed.sites) >= 20
    assert (shares(looks) == shares(even)).all()
    assert (even.sites[3].table["image"] != looks.sites[3].table["image"]).any()


def test_validation_part_and_the_same_deal_for_every_seed() -> None:
    chosen = pneumonia(1, part="validation")
    assert sum(len(site.test["pneumonia"]) for site in chosen.sites) == 524
    other = pneumonia(2)
    assert (chosen.sites[4].table["patient_id"] == other.sites[4].table["patient_id"]).all()


def test_pixels_pass_the_wall_unchanged() -> None:
    site = pneumonia(1).sites[0]
    schema = pneumonia(1).schema
    data = load(
        site.table, schema, "pneumonia", site="x", holdout=0.0, split_key="k", test_source=site.test
    )
    assert data.train.x.shape == (471, 784)
    assert np.sort(data.train.x.sum(axis=1)) == pytest.approx(
        np.sort(site.table["image"].sum(axis=(1, 2)) / 255), rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"), [({"split": "x"}, "split"), ({"part": "x"}, "part")]
)
def test_options_are_checked(options, message) -> None:
    with pytest.raises(StudyError, match=message):
        pneumonia(1, **options)
