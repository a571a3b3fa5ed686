"""Scattering features against their definition, and the linear models of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import suture
from suture.errors import StudyError
from suture.models import scattering
from suture.models.network import rebuilt
from suture.models.scattering import CELLS, NORM, PLACES, TURNS, Scattering, scattered
from suture.study import Study


def pictures(count: int, size: int = 28) -> NDArray[np.float32]:
    return np.random.default_rng(5).random((count, size * size), np.float32)


def turned_round(
    picture: NDArray[np.float64], spectrum: NDArray[np.float32]
) -> NDArray[np.complex128]:
    """A circular convolution by its definition, one shift at a time."""
    kernel = np.fft.ifft2(spectrum.astype(np.float64))
    found = np.zeros(picture.shape, np.complex128)
    for down in range(len(picture)):
        for right in range(len(picture)):
            found += kernel[down, right] * np.roll(picture, (down, right), (0, 1))
    return found


def test_orders_0_and_1_are_smoothed_convolutions_at_every_fourth_pixel() -> None:
    scales, side = 2, 32
    picture = np.random.default_rng(1).random((side, side))
    found = scattered(picture.astype(np.float32), scales)
    assert found.shape == (1 + TURNS * 2 + TURNS**2, CELLS, CELLS)
    smooth = scattering._smooth(scales, side)
    np.testing.assert_allclose(found[0], turned_round(picture, smooth).real[::4, ::4], atol=1e-5)
    for turn in (0, 3):
        wave = np.abs(turned_round(picture, scattering._waves(scales, 0, side)[turn]))
        exact = turned_round(wave, smooth).real[::4, ::4]
        np.testing.assert_allclose(found[1 + turn], exact, atol=1e-5)


def test_coarse_waves_and_order_2_lose_little_by_thinning() -> None:
    """Waves of scale 1 are computed at every second pixel; the definition at every pixel."""
    picture = np.random.default_rng(1).random((32, 32))
    found = scattered(picture.astype(np.float32), 2)
    smooth, coarse = scattering._smooth(2, 32), scattering._waves(2, 1, 32)[2]
    first = np.abs(turned_round(picture, scattering._waves(2, 0, 32)[0]))
    for place, of in ((1 + TURNS + 2, first), (1 + TURNS + TURNS**2 + 2, picture)):
        exact = turned_round(np.abs(turned_round(of, coarse)), smooth).real[::4, ::4]
        assert np.linalg.norm(found[place] - exact) <= 0.03 * np.linalg.norm(exact)


def test_a_wavelet_does_not_see_a_flat_picture() -> None:
    found = scattered(np.full((32, 32), 0.7, np.float32), 2)
    np.testing.assert_allclose(found[0], 0.7, atol=1e-6)
    np.testing.assert_allclose(found[1:], 0, atol=1e-6)


@pytest.mark.parametrize(("size", "scales", "channels"), [(28, 2, 81), (32, 2, 81), (64, 3, 217)])
def test_sizes(size: int, scales: int, channels: int) -> None:
    model = Scattering(size)
    assert (model.scales, len(model)) == (scales, channels * PLACES**2)
    assert model.matrix(pictures(2, size)).shape == (2, len(model))


def test_a_row_depends_on_itself_alone_to_the_last_bit() -> None:
    model, x = Scattering(28), pictures(5)
    found = model.matrix(x)
    np.testing.assert_array_equal(model.matrix(x[3:4]), found[3:4])
    np.testing.assert_array_equal(model.matrix(x[::-1].copy()), found[::-1])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), NORM, rtol=1e-6)
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-6)


def test_pixels_that_are_no_numbers_stay_within_the_norm() -> None:
    x = pictures(2)
    x[0, :5], x[1, :5] = np.nan, np.inf
    assert np.linalg.norm(Scattering(28).matrix(x), axis=1).max() <= NORM * (1 + 1e-6)
    assert np.all(Scattering(28).matrix(np.zeros((1, 784), np.float32)) == 0)


def test_it_is_described_and_rebuilt() -> None:
    model = Scattering(28)
    assert rebuilt(model.described()) == model
    assert model.n_params == 1297
    assert model.predict(model.init(np.random.default_rng(0)), pictures(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("size", [8, 513])
def test_sizes_that_it_does_not_take(size: int) -> None:
    with pytest.raises(StudyError, match="9 to 512"):
        Scattering(size)


def federation(method: dict[str, object]) -> Study:
    return Study(
        name="pictures",
        outcome="abnormal",
        cohort={"name": "radiographs", "hospitals": 3, "images": 60, "size": 16},
        model={"kind": "scattering"},
        method=method,
        privacy={"unit": "patient", "epsilon": 8.0},
    )


@pytest.mark.parametrize(
    "method",
    [
        {"name": "recommended"},
        {"name": "fedavg", "rounds": 2, "batch": 16, "rate": 0.1},
        {"name": "fairfed", "rounds": 2, "batch": 16, "rate": 0.1, "fairness": 0.3},
    ],
    ids=lambda method: str(method["name"]),
)
def test_private_training_on_pictures(method: dict[str, object]) -> None:
    study = federation(method)
    result = suture.run(study, threads=1)
    assert result.privacy["epsilon"] <= 8.0
    assert result.data["model"]["kind"] == "scattering"
    assert result.model["params"].shape == (Scattering(16).n_params,)
    rows = {"image": np.zeros((2, 16, 16), np.uint8)}
    assert result.predict(rows).shape == (2,)


def test_the_recommended_method_is_the_additive_one() -> None:
    assert suture.run(federation({"name": "recommended"})).data["method"] == "additive"
