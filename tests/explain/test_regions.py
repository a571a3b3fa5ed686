"""Regions: a partition with the patient's sides the right way round; Dice against lesions by
hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import DataError
from suture.explain.hospitals import dice, mean_pointing, pointing
from suture.explain.regions import NAMES, from_masks, grid


def centre(regions, name):
    """Row and column at the middle of a region."""
    return np.argwhere(regions.mask(name)).mean(axis=0)


@given(st.integers(16, 130))
@settings(max_examples=25, deadline=None)
def test_every_pixel_is_in_exactly_one_region_and_no_region_is_empty(size):
    regions = grid(size)
    assert np.array_equal(regions.masks.sum(axis=0), np.ones(size * size, np.float32))
    assert (regions.masks.sum(axis=1) > 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("left", "right"))])
def test_the_patients_left_is_on_the_images_right(name):
    _, column = centre(grid(64), name)
    assert (column > 32) == name.startswith("left")


def test_the_heart_lies_to_the_patients_left_and_zones_from_above_to_below():
    regions = grid(64)
    assert centre(regions, "heart")[1] > 32
    for side in ("left", "right"):
        rows = [
            centre(regions, f"{side} {zone}")[0]
            for zone in ("upper zone", "middle zone", "lower zone")
        ]
        assert rows == sorted(rows)


def ellipse(size, down, across, height, width):
    y, x = np.mgrid[:size, :size] / size
    return ((y - down) / height) ** 2 + ((x - across) / width) ** 2 < 1


def test_found_lungs_are_cut_into_thirds_of_their_own_height():
    right, left = ellipse(64, 0.4, 0.3, 0.25, 0.12), ellipse(64, 0.5, 0.7, 0.3, 0.12)
    heart = ellipse(64, 0.6, 0.55, 0.1, 0.1)
    regions = from_masks({"right lung": right, "left lung": left, "heart": heart})
    assert regions.names == NAMES
    assert np.array_equal(regions.mask("heart"), heart)
    lung = regions.mask("right upper zone", "right middle zone", "right lower zone")
    assert np.array_equal(lung, right & ~heart)
    rows = np.flatnonzero((left & ~heart).any(axis=1))
    middle = np.flatnonzero(regions.mask("left middle zone").any(axis=1))
    assert abs((middle.max() - middle.min() + 1) - len(rows) / 3) <= 1
    assert regions.mask("mediastinum")[:, 20].sum() == 0  # only between the lungs


def test_masks_that_cannot_be_lungs_are_refused():
    right, left, heart = (
        ellipse(64, 0.5, 0.3, 0.3, 0.12), ellipse(64, 0.5, 0.7, 0.3, 0.12), ellipse(64, 0.6, 0.5, 0.1, 0.1),
    )  # fmt: skip
    with pytest.raises(DataError, match="mirrored"):
        from_masks({"right lung": left, "left lung": right, "heart": heart})
    with pytest.raises(DataError, match=r"left lung covers 0\.0%"):
        from_masks({"right lung": right, "left lung": np.zeros_like(left), "heart": heart})
    with pytest.raises(DataError, match="at least 16 x 16"):
        grid(8)


def test_dice_by_hand():
    regions = grid(64)
    lesion = np.zeros((64, 64), bool)
    lesion[14:20, 10:20] = True  # 60 pixels, all in the right upper zone's 270
    values = np.zeros(13)
    values[regions.names.index("right upper zone")] = 2.0
    values[regions.names.index("heart")] = 1.0
    found = pointing(values, lesion, regions)
    assert found.wanted == found.named == ("right upper zone",)
    assert found.regions == 1.0
    assert found.pixels == found.ceiling == pytest.approx(2 * 60 / (60 + 270))
    wrong = pointing(
        -values, lesion, regions
    )  # no value above zero among the first: nothing is named
    assert (wrong.regions, wrong.named) == (0.0, ())
    both = mean_pointing(np.stack([values, -values]), np.stack([lesion, lesion]), regions)
    assert both == {
        "images": 2,
        "regions": 0.5,
        "pixels": found.pixels / 2,
        "ceiling": found.ceiling,
    }
    assert dice(lesion, ~lesion) == 0.0
    across = np.zeros((64, 64), bool)
    across[20:40, 10:50] = (
        True  # over several regions: no union of regions does better than the ceiling
    )
    few = np.unique(regions.index[across]).tolist()
    sets = [chosen for k in range(1, len(few) + 1) for chosen in itertools.combinations(few, k)]
    best = max(dice(np.isin(regions.index, chosen), across) for chosen in sets)
    assert pointing(values, across, regions).ceiling == pytest.approx(best)
    with pytest.raises(DataError, match="no image has"):
        mean_pointing(values[None], np.zeros((1, 64, 64), bool), regions)
