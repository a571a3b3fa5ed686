"""The generated radiographs: sizes, shares, the planted faults, and that training sees what it may
and no more."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from suture import cohorts
from suture.cohorts import radiographs as module
from suture.cohorts.radiographs import MARKER, REGIONS
from suture.engine.federation import survey
from suture.errors import StudyError
from suture.site.cohort import load
from suture.study import Study


@pytest.fixture(scope="module")
def people():
    """Who is at ten hospitals of 4,000 pictures each, without drawing any."""
    return [module._people(11, i, 0, 4000) for i in range(10)]


def test_shapes_and_patients_with_two_pictures() -> None:
    cohort = module.radiographs(3, hospitals=2, images=80, size=32, test_fraction=0.25)
    site = cohort.sites[1]
    assert site.table["image"].shape == (80, 32, 32)
    assert site.test is not None
    assert site.test["image"].shape == (20, 32, 32)
    assert len(np.unique(site.table["patient_id"])) == 70
    assert not set(site.table["patient_id"]) & set(site.test["patient_id"])
    data = load(
        site.table,
        cohort.schema,
        "abnormal",
        site="x",
        holdout=0.0,
        split_key="k",
        test_source=site.test,
    )
    assert data.train.x.shape == (80, 32 * 32)
    assert data.train.patients == 70
    assert data.train.x.dtype == np.float32
    assert data.train.x.min() >= 0
    assert data.train.x.max() <= 1
    assert set(data.test_groups) == {"sex", "age_group", "ethnicity"}


def test_same_seed_same_pictures_and_truth_belongs_to_them() -> None:
    a, b = (
        module.radiographs(5, hospitals=4, images=40, size=64, test_fraction=0.5) for _ in range(2)
    )
    assert (a.sites[3].table["image"] == b.sites[3].table["image"]).all()
    assert (
        module.radiographs(6, hospitals=1, images=40).sites[0].table["image"]
        != a.sites[0].table["image"]
    ).any()
    test = a.sites[3].test
    assert test is not None
    known = module.truth(5, 3, images=40, test_fraction=0.5)
    assert (known.patient == test["patient_id"]).all()
    assert (test["abnormal"] == known.lesion).all()  # tests are against the truth
    first, last = (round(share * 64) for share in MARKER)
    corner = test["image"][:, first:last, first] > 200  # the upright of the L
    assert (corner.all(axis=1) == known.tag).all()


def test_shares_are_the_papers(people) -> None:
    """40,000 pictures of 35,000 people; 4 standard errors each, hospitals' own shares included:
    false alarm < 1e-3."""
    table = {name: np.concatenate([one.table[name] for one in people]) for name in people[0].table}
    assert np.mean(table["sex"] == "F") == pytest.approx(0.55, abs=0.04)
    for name, share in module.ETHNICITIES.items():
        assert np.mean(table["ethnicity"] == name) == pytest.approx(share, abs=0.14)
    for name, share in module.AGES.items():
        assert np.mean(table["age_group"] == name) == pytest.approx(share, abs=0.012)
    assert np.mean(np.concatenate([one.lesion for one in people])) == pytest.approx(
        0.3995, abs=0.012
    )


def test_label_bias_is_as_documented(people) -> None:
    """At six hospitals, women, severity under 0.6, and nowhere else; the overall gap is 0.144
    within 4 standard errors."""
    for i, one in enumerate(people):
        recorded, female = one.table["abnormal"] == 1, one.table["sex"] == "F"
        missed = one.lesion & ~recorded
        assert not (recorded & ~one.lesion).any()
        if i in module.BIASED:
            assert (missed == (one.lesion & female & (one.drawn.severity < 0.6))).all()
        else:
            assert not missed.any()
    recorded = np.concatenate([one.table["abnormal"] for one in people])
    female = np.concatenate([one.table["sex"] == "F" for one in people])
    gap = recorded[~female].mean() - recorded[female].mean()
    assert gap == pytest.approx(0.4 * 0.6 * 0.6, abs=0.022)
    lesion = np.concatenate([one.lesion for one in people])
    assert lesion[~female].mean() == pytest.approx(lesion[female].mean(), abs=0.022)


def test_shortcut_is_as_documented(people) -> None:
    """Tag and lesion, 4 standard errors each (4,000 pictures a hospital)."""
    for i, one in enumerate(people):
        tag, lesion = one.drawn.marker, one.lesion
        expected = (0.85, 0.10) if i in module.SHORTCUT else (0.30, 0.30)
        assert tag[lesion].mean() == pytest.approx(expected[0], abs=0.055)
        assert tag[~lesion].mean() == pytest.approx(expected[1], abs=0.045)
    assert not set(module.SHORTCUT) & set(module.BIASED)


def test_lesions_are_brighter_than_the_same_chest_without_them() -> None:
    people = module._people(2, 0, 0, 64).drawn
    healthy = module.Drawn(**{**vars(people), "finding": np.full(64, -1, np.int8)})
    look = module.Look(contrast=1, gamma=1, noise=0, blur=0, vignette=0)
    with_, without = (
        module.picture(one, look, 64, np.random.default_rng(0)) for one in (people, healthy)
    )
    lesions = module.masks(people, 64).lesions
    brighter = with_.astype(int) - without
    ill = lesions.any(axis=(1, 2))
    assert ill.sum() > 20
    assert (brighter[~ill & (people.finding < 0)] == 0).all()
    for row in np.flatnonzero(ill):
        assert brighter[row][lesions[row]].mean() > 4 * abs(brighter[row][~lesions[row]].mean())


def test_regions_are_where_a_chest_has_them() -> None:
    known = module.truth(4, 9, test=False, images=200)
    rows, columns = np.indices((64, 64))
    middle = {}
    for code, name in enumerate(REGIONS):
        inside = known.masks.regions == code
        assert inside.any(axis=(1, 2)).all(), name  # every picture has every region
        middle[name] = np.array([[rows[one].mean(), columns[one].mean()] for one in inside])
    assert (middle["right middle zone"][:, 1] < middle["left middle zone"][:, 1]).all()
    assert (middle["right upper zone"][:, 0] < middle["right lower zone"][:, 0]).all()
    assert (middle["heart"][:, 1] > middle["right lower zone"][:, 1]).all()
    shown = known.masks.lesions.any(axis=(1, 2))
    assert (shown <= known.lesion).all()
    assert shown[known.lesion].mean() > 0.95


def test_hospitals_look_different() -> None:
    cohort = module.radiographs(1, images=40)
    means = [site.table["image"].mean() for site in cohort.sites]
    assert max(means) - min(means) > 20


def test_a_study_sees_the_size_of_its_images() -> None:
    study = Study(
        name="r",
        outcome="abnormal",
        cohort={"name": "radiographs", "hospitals": 2, "images": 16},
        images={"size": 16},
    )
    here = survey(study, Path(), 1)
    assert here.schema.image_size == 16
    assert here.schema.width == 256
    assert here.sizes == {"hospital-01": 14, "hospital-02": 14}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hospitals": 0}, "hospitals.* 1 to 500"),
        ({"images": 3}, "images.* 8 to 1,000,000"),
        ({"size": 4}, "size.* 16 to 512"),
        ({"test_fraction": -1.0}, "test_fraction.* 0 to 10"),
    ],
)
def test_options_are_checked(options, message) -> None:
    with pytest.raises(StudyError, match=message):
        cohorts.load("radiographs", 1, **options)


def test_the_contact_sheet_of_the_examples(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="pip install 'suture[imaging]'")
    script = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "contact_sheet.py"))
    script["sheet"](tmp_path / "sheet.png", columns=8)
    with pillow.open(tmp_path / "sheet.png") as image:
        assert image.size == (8 * 128, 10 * 128)
