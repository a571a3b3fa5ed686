"""Wavelet scattering: public features of grey images, and a linear model of them.

Bruna & Mallat: Invariant Scattering Convolution Networks. IEEE TPAMI 35(8), 2013, arXiv:1203.1513.
None of it is learnt, so the features cost no privacy; with few patients a private linear model of
them beats private deep networks (Tramèr & Boneh: Differentially Private Learning Needs Better
Features (or Much More Data). ICLR 2021, arXiv:2011.11660).

| here | Bruna & Mallat |
|---|---|
| `_waves` | psi, Morlet wavelets of `TURNS` angles at each of J scales (section 2.1) |
| `_smooth` | phi, a Gaussian about 2^J pixels wide |
| `scattered` | S0 = x * phi, S1 = abs(x * psi1) * phi, S2 = abs(abs(x * psi1) * psi2) * phi |

An image is mirrored at its edges up to `CELLS` 2^J pixels a side, with the smallest J that holds
it, so that every channel has `CELLS` x `CELLS` places, which are averaged to `PLACES` x `PLACES`.
Then log(1 + `LIFT` s), less the image's own mean, scaled to norm `NORM` (2, 4 and 8 were compared on
the validation part of PneumoniaMNIST).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from suture.errors import StudyError
from suture.models.concepts import Concept, Remember
from suture.models.dense import Dense, Description, Floats, Settings, Trainer

Doubles = NDArray[np.float64]
Spectrum = NDArray[np.complexfloating]
TURNS = 8
CELLS, PLACES = 8, 4
LIFT = 20.0
NORM = 4.0
WIDE, FAST, SLANT = 0.8, 0.75 * math.pi, 4 / TURNS
"""Of the finest wavelet: the Gaussian's deviation in pixels, radians a pixel, and how much longer
than wide it is."""
_KNOWN: Remember[Floats, Floats] = Remember(4096)


@cache
def _smooth(scales: int, side: int) -> Floats:
    """phi for J scales, as the spectrum of a picture that was thinned to ``side`` pixels sees it."""
    whole = CELLS << scales
    bell = _waved(whole, WIDE * 2 ** (scales - 1), 0.0, 0.0, 1.0)
    return _seen(np.real(fft.fft2(bell / bell.sum())), side)


@cache
def _waves(scales: int, scale: int, side: int) -> Floats:
    """psi of one scale, angles x side x side."""
    whole, sigma, speed = CELLS << scales, WIDE * 2**scale, FAST / 2**scale
    each = [_morlet(whole, sigma, math.pi * turn / TURNS, speed) for turn in range(TURNS)]
    return _seen(np.array(each), side)


def _seen(spectrum: Doubles, side: int) -> Floats:
    return np.asarray(_thinned(spectrum, side) * (spectrum.shape[-1] // side) ** 2, np.float32)


def _waved(side: int, sigma: float, turn: float, speed: float, slant: float) -> Spectrum:
    """A periodic Gaussian, ``sigma`` along ``turn`` and sigma / slant across, times a plane wave."""
    steps = np.arange(-2 * side, 3 * side, dtype=np.float64)
    y, x = np.meshgrid(steps, steps, indexing="ij")
    along = x * math.cos(turn) + y * math.sin(turn)
    across = y * math.cos(turn) - x * math.sin(turn)
    whole = np.exp(1j * speed * along - (along**2 + (slant * across) ** 2) / (2 * sigma**2))
    found: Spectrum = whole.reshape(5, side, 5, side).sum(axis=(0, 2))
    return found


def _morlet(side: int, sigma: float, turn: float, speed: float) -> Doubles:
    """A Morlet wavelet: a wave under a Gaussian, less the part that makes its mean other than 0."""
    wave, bell = (_waved(side, sigma, turn, each, SLANT) for each in (speed, 0.0))
    found = wave - wave.sum() / bell.sum() * bell
    return np.asarray(np.real(fft.fft2(found * SLANT / (2 * math.pi * sigma**2))))


def _thinned(spectrum: Any, side: int) -> Any:
    """The spectrum of what is left when only every k-th pixel of a row and column is kept."""
    k = spectrum.shape[-1] // side
    return spectrum.reshape(*spectrum.shape[:-2], k, side, k, side).mean(axis=(-4, -2))


def scattered(picture: Floats, scales: int) -> Floats:
    """Channels x CELLS x CELLS of one picture: order 0, then scale by scale orders 1 and 2."""
    side = CELLS << scales

    def smoothed(spectrum: Spectrum) -> Floats:
        low = _smooth(scales, spectrum.shape[-1])
        cells = np.real(fft.ifft2(_thinned(spectrum * low, CELLS)))
        return np.asarray(cells, np.float32).reshape(-1, CELLS, CELLS)

    def waved(spectrum: Spectrum, scale: int) -> Spectrum:
        bands = _waves(scales, scale, spectrum.shape[-1])
        small = _thinned(spectrum[..., None, :, :] * bands, side >> scale)
        found: Spectrum = fft.fft2(np.abs(fft.ifft2(small)))
        return found

    whole = fft.fft2(picture)
    found = [smoothed(whole)]
    for scale in range(scales):
        first = waved(whole, scale)
        found.append(smoothed(first))
        found += [smoothed(waved(first, more)) for more in range(scale + 1, scales)]
    return np.concatenate(found)


@dataclass(frozen=True)
class Scattering:
    """A linear model of the scattering features of ``size`` x ``size`` images, each a row of pixels
    from 0 to 1; also the terms of an additive model, one per channel and place.

    >>> Scattering(28).n_params, Scattering(64).n_params
    (1297, 3473)
    """

    kind: ClassVar[str] = "scattering"
    trainer: ClassVar[Trainer] = "features"
    featured: ClassVar[bool] = True

    size: int
    outputs: int = 1

    def __post_init__(self) -> None:
        if not CELLS < self.size <= 512:
            raise StudyError(
                f'model.kind = "scattering" takes images of {CELLS + 1} to 512 pixels a side, '
                f"found {self.size}"
            )

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Scattering:
        size = math.isqrt(inputs)
        if size * size != inputs:
            raise StudyError(
                f'model.kind = "scattering" needs square images, found rows of {inputs} numbers; '
                'use "dense" for tables'
            )
        return cls(size, outputs)

    @classmethod
    def rebuilt(cls, model: Description) -> Scattering:
        return cls(model["size"], model["outputs"])

    def described(self) -> Description:
        return {"kind": self.kind, "size": self.size, "outputs": self.outputs}

    @property
    def scales(self) -> int:
        """J."""
        return math.ceil(math.log2(self.size / CELLS))

    def __len__(self) -> int:
        """Features of an image."""
        j = self.scales
        return (1 + TURNS * j + TURNS**2 * j * (j - 1) // 2) * PLACES**2

    @cached_property
    def head(self) -> Dense:
        """The linear model."""
        return Dense((len(self), self.outputs))

    @property
    def n_params(self) -> int:
        return self.head.n_params

    @property
    def classes(self) -> int:
        return self.head.classes

    def labels(self, y: NDArray[np.int32]) -> NDArray[np.int32]:
        return y

    @property
    def inputs(self) -> int:
        return self.size * self.size

    def init(self, rng: np.random.Generator) -> Floats:
        """All 0: every image has the same risk until something is learnt."""
        return np.zeros(self.n_params, np.float32)

    def logits(self, params: Floats, x: Floats) -> Floats:
        return self.head.logits(params, self.features(x))

    def predict(self, params: Floats, x: Floats) -> Floats:
        return self.head.predict(params, self.features(x))

    def features(self, x: Floats) -> Floats:
        """A row of features for every row of pixels; those of a table that stays are computed
        once."""
        return _KNOWN.get(x, lambda: self.matrix(x), str(self.size))

    # --- as the terms of an additive model ---------------------------------------------------------

    @property
    def digest(self) -> str:
        """Stands for the features in a release's fingerprint."""
        text = repr((self.size, TURNS, CELLS, PLACES, LIFT, NORM, WIDE, FAST, SLANT)).encode()
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    @cached_property
    def items(self) -> tuple[Concept, ...]:
        """One per channel and place; a place counts as one feature."""
        places = [f"row {1 + at // PLACES}, column {1 + at % PLACES}" for at in range(PLACES**2)]
        return tuple(
            Concept(
                f"{places[i % PLACES**2]}, channel {1 + i // PLACES**2}",
                places[i % PLACES**2],
                "value",
                0,
            )
            for i in range(len(self))
        )

    def matrix(self, x: Floats) -> Floats:
        """The features, image by image: each row's depend on that row alone, to the last bit."""
        if x.ndim != 2 or x.shape[1] != self.inputs:
            raise ValueError(f"expected rows of {self.inputs} pixels, found {x.shape}")
        k, room = CELLS // PLACES, (CELLS << self.scales) - self.size
        edges = ((room // 2, room - room // 2),) * 2
        out = np.empty((len(x), len(self)), np.float32)
        for row, pixels in enumerate(x):
            square = np.clip(np.nan_to_num(pixels), 0, 1).reshape(self.size, self.size)
            cells = scattered(np.pad(square, edges, "symmetric"), self.scales)
            means = cells.reshape(-1, PLACES, k, PLACES, k).mean(axis=(2, 4))
            flat = np.log1p(LIFT * np.maximum(means, 0).astype(np.float64)).ravel()
            flat -= flat.mean()
            norm = math.sqrt(math.fsum(flat * flat))
            out[row] = flat * (NORM / norm if norm > 0 else 0.0)
        return out
