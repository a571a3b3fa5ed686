"""Shapley values: by hand, against a formula, Kernel SHAP against enumeration, additivity to
1e-6."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suture.errors import DataError
from suture.explain.regions import Regions, blurred, grid, mean_image
from suture.explain.shapley import (
    all_sets,
    composed,
    exact,
    explain_image,
    explain_images,
    kernel_shap,
    log_odds,
)

pytest.importorskip("shap", reason="Kernel SHAP needs the imaging extra")
SIZE = 24
REGIONS = grid(SIZE)


def network(seed, hidden=8):
    """A small random network of tanh units: interactions of every order between regions."""
    r = np.random.default_rng(seed)
    first = r.normal(0, 3 / SIZE, (SIZE * SIZE, hidden))
    second = r.normal(0, 1.5, hidden)

    def predict(rows):
        return 1 / (1 + np.exp(-np.tanh(rows @ first) @ second))

    return predict


def pictures(seed, count=1):
    r = np.random.default_rng(seed)
    return r.random((count, SIZE * SIZE)).astype(np.float32)


def slow_shapley(worth, count):
    """The mean over all orders in which players may come."""
    total = np.zeros(count)
    for order in itertools.permutations(range(count)):
        here = 0
        for player in order:
            then = here | 1 << (count - 1 - player)
            total[player] += worth[then] - worth[here]
            here = then
    return total / math.factorial(count)


@given(st.lists(st.floats(-5, 5), min_size=16, max_size=16))
@settings(max_examples=30, deadline=None)
def test_exact_values_are_the_mean_over_orders(worth):
    worth = np.array(worth)
    assert exact(worth) == pytest.approx(slow_shapley(worth, 4), abs=1e-12)


def test_exact_values_of_a_known_game():
    # Gloves: players 1 and 2 hold a left glove, player 3 a right one; a pair is worth 1 (a
    # textbook's example).
    worth = np.array([1.0 if s[2] and (s[0] or s[1]) else 0.0 for s in all_sets(3)])
    assert exact(worth) == pytest.approx([1 / 6, 1 / 6, 4 / 6], abs=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_values_add_up_and_kernel_shap_is_close_to_the_exact_values(seed):
    image, background = pictures(seed, 2)
    predict = network(seed)
    found = explain_image(predict, image, background, REGIONS, seed=seed)
    whole, empty = log_odds(predict(np.stack([image, background])))
    assert found.exact
    assert found.leftover < 1e-6
    assert found.base + found.values.sum() == pytest.approx(whole, abs=1e-6)
    assert found.base + found.kernel.sum() == pytest.approx(whole, abs=1e-6)
    assert found.base == pytest.approx(empty, abs=1e-6)
    # Measured over these five: at most 0.0104 log odds with 2,048 of 8,190 sets; the values
    # themselves reach 2.7.
    assert found.difference < 0.02
    assert found.risk == pytest.approx(float(predict(image[None])[0]), abs=1e-6)


def test_kernel_shap_that_asks_every_set_is_exact():
    image, background = pictures(9, 2)
    found = explain_image(network(9), image, background, REGIONS, samples=2**13)
    assert found.samples == 2**13 - 2
    assert found.difference < 1e-8


def test_a_model_of_one_region_gives_every_other_region_nothing():
    corner = REGIONS.mask("left top corner").ravel()

    def predict(rows):
        return 1 / (1 + np.exp(-5 * rows[:, corner].mean(axis=1)))

    found = explain_image(
        predict, np.ones(SIZE * SIZE, np.float32), np.zeros(SIZE * SIZE, np.float32), REGIONS
    )
    named = dict(zip(found.names, found.values, strict=True))
    assert named.pop("left top corner") == pytest.approx(
        5, abs=1e-5
    )  # a float32 risk of 0.993 is known to 4e-6
    assert max(abs(value) for value in named.values()) < 1e-6
    assert (
        max(
            abs(v) for n, v in zip(found.names, found.kernel, strict=True) if n != "left top corner"
        )
        < 1e-6
    )


def test_many_images_at_once_are_each_as_alone_and_the_global_generator_is_left_alone():
    images, background = pictures(3, 3), mean_image(pictures(4, 5))
    predict = network(1)
    np.random.seed(5)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    together = explain_images(predict, images, background, REGIONS, samples=500, seed=2)
    assert np.random.random() == expected  # noqa: NPY002
    for i, image in enumerate(images):
        alone = kernel_shap(composed(predict, image[None], background[None], REGIONS), 13, 500, 2)[
            0
        ]
        assert together[i] == pytest.approx(alone, abs=1e-9)


def test_more_regions_than_can_be_enumerated():
    image = pictures(6)[0]
    background = blurred(image)
    step = np.arange(SIZE) * 6 // SIZE
    index = (6 * step[:, None] + step).astype(np.int16)
    fine = Regions(tuple(f"cell {i}" for i in range(36)), index, "6 x 6 cells")
    found = explain_image(network(6), image, background, fine)
    assert (found.exact, found.difference, len(found.values)) == (False, None, 36)
    assert found.leftover < 1e-6


def test_pixels_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="24 x 24"):
        explain_image(network(0), np.zeros(100, np.float32), np.zeros(100, np.float32), REGIONS)
