"""Shapley values of image regions: how much each region moves a model's log odds, and together
exactly all of it.

Lundberg and Lee, "A Unified Approach to Interpreting Model Predictions", NeurIPS 2017,
arXiv:1705.07874 (Kernel SHAP, through the `shap` library); Shapley, "A Value for n-Person Games",
1953 (the exact values, by enumeration). The fair radiology paper asks for Kernel
SHAP over regions of interest on the ensemble's predictions.

The players are regions. A set S of regions is worth the model's log odds of the image in which
every region outside S shows the *background* instead (`suture.explain.regions`). Values are in
**log odds**, not probability: there a value means the same whether the risk is 2 % or 90 % (a
probability near 0 or 1 hardly moves, so regions would share nothing), and every page of Suture adds
up in log odds. Exact for both: ``base + sum(values) == log_odds``, where base is the model on the
background alone.

| symbol | here |
|---|---|
| M, number of players | ``len(regions.names)`` |
| z' in {0, 1}^M | a row of ``sets`` |
| h_x(z') | the image composed of regions and background |
| phi_i | ``values[i]`` |

With up to `EXACT_MOST` regions all 2^M sets are asked, once: the exact values come from them, and
Kernel SHAP, which looks at ``samples`` of the same sets, is compared with them; the largest
difference is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, MissingExtra
from suture.explain.regions import Regions
from suture.explain.run import Floats, Rows, sigmoid

Predict = Callable[[Rows], NDArray[np.floating]]
"""Rows of pixels, one per image, to one risk each."""
Worth = Callable[[Floats], Floats]
"""Sets, each a row of zeros and ones, to what each is worth: one column per image explained."""

EXACT_MOST = 14
"""Regions up to which all sets (16,384) are asked: seconds for a small network on two cores."""
SAMPLES = 2048
BATCH = 512
"""Composed images per call of the model: 8 MB at 64 x 64, whatever the number of sets."""
LEAST_RISK = 1e-6
"""Risks are kept this far from 0 and 1, or a saturated float32 would have infinite log odds."""


@dataclass(frozen=True)
class RegionValues:
    """One image explained: ``base + values.sum()`` is ``log_odds``."""

    names: tuple[str, ...]
    values: Floats
    """Exact where all sets were asked, else Kernel SHAP's."""
    base: float
    log_odds: float
    kernel: Floats
    """Kernel SHAP's values."""
    exact: bool
    samples: int
    """Sets that Kernel SHAP looked at."""

    @property
    def difference(self) -> float | None:
        """Largest difference between Kernel SHAP and the exact values, in log odds; None where
        these are not known."""
        return float(np.abs(self.values - self.kernel).max()) if self.exact else None

    @property
    def risk(self) -> float:
        """The model's risk for the whole image."""
        return sigmoid(self.log_odds)

    @property
    def leftover(self) -> float:
        """What additivity misses: rounding."""
        return abs(self.base + math.fsum(self.values) - self.log_odds)


def explain_image(
    predict: Predict,
    image: Rows,
    background: Rows,
    regions: Regions,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    enumerate_all: bool = True,
) -> RegionValues:
    """Values of all regions of one image (a row of pixels) against one background (a row of
    pixels).

    ``enumerate_all=False`` asks the model ``samples`` times only, for networks that take long to
    answer.
    """
    worth = composed(predict, image[None, :], background[None, :], regions)
    count = len(regions.names)
    known = enumerate_all and count <= EXACT_MOST
    if known:
        table = worth(all_sets(count))[:, 0]
        values = exact(table)
        looked_up: Worth = lambda sets: table[_number(sets)][:, None]  # noqa: E731 - the model has been asked already
        kernel = kernel_shap(looked_up, count, samples, seed)[0]
        base, full = float(table[0]), float(table[-1])
    else:
        base, full = (float(v) for v in worth(np.stack([np.zeros(count), np.ones(count)]))[:, 0])
        values = kernel = kernel_shap(worth, count, samples, seed)[0]
    return RegionValues(
        regions.names, values, base, full, kernel, known, min(samples, 2**count - 2)
    )


def explain_images(
    predict: Predict,
    images: Rows,
    background: Rows,
    regions: Regions,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Floats:
    """Kernel SHAP for many images at once, one row per image: they share the sampled sets, so
    differences between images are the images' and not the sampling's."""
    count = len(regions.names)
    parts = [np.empty((0, count))]
    for start in range(0, len(images), 64):
        worth = composed(predict, images[start : start + 64], background[None, :], regions)
        parts.append(kernel_shap(worth, count, samples, seed))
    return np.concatenate(parts)


def composed(predict: Predict, images: Rows, background: Rows, regions: Regions) -> Worth:
    """What a set of regions is worth: log odds of each image with the other regions taken from the
    background."""
    pixels = regions.size**2
    if images.shape[1] != pixels or background.shape[1] != pixels:
        raise DataError(
            f"regions are for {regions.size} x {regions.size} pixels; expected {pixels}, found "
            f"{images.shape[1]} in the image and {background.shape[1]} in the background"
        )
    masks = regions.masks

    def worth(sets: Floats) -> Floats:
        found = np.empty((len(sets), len(images)))
        for start in range(0, len(sets), BATCH):
            batch = slice(start, start + BATCH)
            inside = sets[batch].astype(np.float32) @ masks
            for i, image in enumerate(images):
                mixed = background + inside * (image - background)
                found[batch, i] = log_odds(predict(mixed))
        return found

    return worth


def log_odds(risks: NDArray[np.floating]) -> Floats:
    """Log odds of risks, kept off 0 and 1 by `LEAST_RISK`."""
    p = np.clip(np.asarray(risks, np.float64).ravel(), LEAST_RISK, 1 - LEAST_RISK)
    return np.asarray(np.log(p) - np.log1p(-p))


def all_sets(count: int) -> Floats:
    """Every set of ``count`` players as zeros and ones, the first player changing slowest; first
    nobody, last everybody.

    >>> all_sets(2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    numbers = np.arange(2**count)[:, None]
    return (numbers >> np.arange(count - 1, -1, -1) & 1).astype(np.float64)


def exact(worth: Floats) -> Floats:
    """Exact Shapley values of a game from the worth of all its sets, in the order of `all_sets`.

    phi_i = sum over sets S without i of |S|! (M - |S| - 1)! / M! * (worth(S with i) - worth(S)).
    """
    count = len(worth).bit_length() - 1
    sizes = all_sets(count - 1).sum(axis=1).astype(int) if count > 1 else np.zeros(1, int)
    weight = np.array([1 / (count * math.comb(count - 1, size)) for size in range(count)])[sizes]
    cube = worth.reshape((2,) * count)
    gains = (np.diff(cube, axis=player).ravel() for player in range(count))
    return np.array([math.fsum(weight * gain) for gain in gains])


def kernel_shap(worth: Worth, count: int, samples: int = SAMPLES, seed: int = 0) -> Floats:
    """Kernel SHAP by the `shap` library, one row per image; the same ``seed`` asks the same sets.

    No selection of features (``l1_reg``): the library's default keeps ten values and sets the
    others to zero.
    """
    try:
        import shap
    except ImportError:
        need = "Kernel SHAP needs the shap package: pip install 'suture[imaging]'"
        raise MissingExtra(need) from None
    if count == 1:
        ends = worth(np.array([[0.0], [1.0]]))
        return np.asarray((ends[1] - ends[0])[:, None])
    with _seeded(seed):
        explainer, full = shap.KernelExplainer(worth, np.zeros((1, count))), np.ones((1, count))
        found = explainer.shap_values(full, nsamples=samples, l1_reg=False, silent=True)
    return np.asarray(np.asarray(found, np.float64)[0].T)


def _number(sets: Floats) -> NDArray[np.intp]:
    """Row of each set in `all_sets`."""
    return (sets.astype(np.intp) @ (1 << np.arange(sets.shape[1] - 1, -1, -1))).astype(np.intp)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The library draws sets from numpy's global generator; what others get from it must not
    change."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
