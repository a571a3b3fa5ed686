"""Chest-like radiographs drawn from a few numbers a patient: shapes, bones, lesions, and the scanner's look.

Nothing here is a real image. Coordinates run from -1 to 1, ``u`` from the left to the right of the picture, ``v`` from
its top to its bottom, so the patient's right lung is on the left. Dense is bright, as in DICOM's MONOCHROME2. All shapes
are drawn through one smooth random displacement of the coordinates a patient, which makes every outline irregular
without any loop over images: 500 images of 64 x 64 take about half a second on one core.

Everything that is random about a patient or a picture is in `Drawn`; `picture` and `masks` are functions of it, so the
true outlines can be had for evaluation without being stored beside the images.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

F = NDArray[np.float32]
FINDINGS = ("pneumonia", "oedema", "fracture")
"""The three kinds of abnormal that paper 004 names (section 4.1)."""
FINDING_SHARES = (0.5, 0.3, 0.2)
CONTRAST = ((0.10, 0.32), (0.06, 0.22), (0.20, 0.55))
"""For each finding, how much brighter than the lung it is, from the slightest to the most severe (full range = 1)."""
ZONES = ("upper zone", "middle zone", "lower zone")
REGIONS = (
    *(f"right {zone}" for zone in ZONES),
    *(f"left {zone}" for zone in ZONES),
    "heart",
    "mediastinum",
    "rest of the body",
    "outside the body",
)
"""What a pixel of `Masks.regions` can be, in the order of its code."""
MARKER = (0.05, 0.17)
"""The tag's square, top left, as shares of the picture's side."""
_WAVES = 5  # side of the coarse grid of random numbers behind a smooth field


class Look(NamedTuple):
    """A scanner: what it does to every picture."""

    contrast: float
    gamma: float
    noise: float
    blur: float
    """Standard deviation in pixels of a 64 x 64 picture."""
    vignette: float


@dataclass(frozen=True)
class Drawn:
    """What is random about some pictures, one entry each. Pictures of one patient share all but ``pose``."""

    body: F
    """n x 8: standard normal numbers behind the sizes of chest, lungs, heart, ribs."""
    field: F
    """n x 2 x 5 x 5: the coarse displacement."""
    pose: F
    """n x 4: shift, turn, exposure."""
    female: NDArray[np.bool_]
    old: F
    """0, 0.5 or 1, by age group."""
    finding: NDArray[np.int8]
    """-1 for none, else the index in `FINDINGS`."""
    severity: F
    """From 0 (slight) to 1."""
    place: F
    """n x 4: where a lesion is and how large, standard uniform numbers."""
    shape: F
    """n x 5 x 5: a coarse field that makes a lesion irregular."""
    marker: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.female)

    def take(self, rows: Any) -> Drawn:
        """Some of the pictures."""
        return Drawn(**{part.name: getattr(self, part.name)[rows] for part in fields(self)})


class Masks(NamedTuple):
    """The truth about some pictures, for evaluation only."""

    regions: NDArray[np.int8]
    """rows x side x side: the index in `REGIONS` of each pixel."""
    lesions: NDArray[np.bool_]
    """rows x side x side: where the lesion is (nowhere in a normal picture)."""


def _soft(x: NDArray[Any]) -> F:
    """1 well inside (x large), 0 well outside, in float32."""
    return np.asarray(0.5 + 0.5 * np.tanh(x), np.float32)


def _smooth(coarse: F, side: int) -> F:
    """A coarse grid of numbers (last two axes) as a smooth field of the picture's size: a cosine series."""
    at = (np.arange(side, dtype=np.float32) + 0.5) / side
    basis = np.cos(np.pi * np.outer(at, np.arange(coarse.shape[-1]))).astype(np.float32)
    basis /= 1 + np.arange(coarse.shape[-1], dtype=np.float32)  # slow waves count most
    return np.asarray(basis @ coarse @ basis.T, np.float32)


class _Chest:
    """The soft outlines of some patients' chests on the pixel grid."""

    def __init__(self, drawn: Drawn, side: int) -> None:
        axis = (2 * (np.arange(side, dtype=np.float32) + 0.5) / side - 1).astype(np.float32)
        v, u = np.meshgrid(axis, axis, indexing="ij")
        pose = drawn.pose[:, :, None, None]
        moved = _smooth(drawn.field, side)
        wide = 1 + 0.045 * drawn.body[:, 0, None, None] - 0.04 * drawn.female[:, None, None]
        tall = 1 + 0.045 * drawn.body[:, 1, None, None]
        turn = 0.035 * pose[:, 2]
        self.u: F = ((u - 0.04 * pose[:, 0] + turn * v) / wide + 0.035 * moved[:, 0]).astype(np.float32)
        self.v: F = ((v - 0.04 * pose[:, 1] - turn * u) / tall + 0.035 * moved[:, 1]).astype(np.float32)
        size = drawn.body[:, 2:, None, None]
        across = np.abs(self.u)
        # Shoulders slope down from the neck; the trunk widens a little downwards.
        half = np.minimum(0.93 + 0.03 * self.v, 0.24 + 2.2 * np.maximum(self.v + 0.98, 0))
        self.body = _soft((half - across) / 0.04)
        self.lungs = []
        for right in (True, False):  # the patient's right is the picture's left
            sign = -1 if right else 1
            x = (sign * self.u - 0.43) / (0.28 + 0.018 * size[:, 0])
            y = (self.v + 0.06) / (0.66 + 0.03 * size[:, 1])
            oval = 1 - x**2 - np.abs(y * y * y)
            dome = 0.47 + 0.05 * size[:, 2] + (0.0 if right else 0.05) + 0.16 * x**2 - self.v
            self.lungs.append(_soft(4.5 * oval) * _soft(dome / 0.03))
        large = 0.31 + 0.02 * size[:, 3] + 0.02 * drawn.old[:, None, None] - 0.012 * drawn.female[:, None, None]
        x, y = self.u - 0.12, self.v - 0.24
        self.heart = _soft(4 * (1 - ((x + 0.35 * y) / large) ** 2 - ((y - 0.2 * x) / (0.95 * large)) ** 2))
        self.centre = _soft((0.13 + 0.01 * size[:, 4] - across) / 0.035) * _soft((0.62 - self.v) / 0.1) * self.body


def _bones(chest: _Chest, drawn: Drawn) -> F:
    """Ribs, collar bones and spine; fainter in the old."""
    across: F = np.abs(chest.u)
    spacing = 0.165
    course = (chest.v - 0.30 * across + 0.55 * np.maximum(across - 0.35, 0) ** 2) / spacing
    course += 0.12 * drawn.body[:, 5, None, None]
    ribs: NDArray[Any] = np.exp(-(((course - np.round(course)) * spacing / 0.032) ** 2))
    ribs = ribs * _soft((0.82 - across) / 0.05) * _soft((across - 0.1) / 0.03) * _soft((0.6 - chest.v) / 0.08)
    collar = np.exp(-(((chest.v + 0.70 - 0.14 * across) / 0.032) ** 2)) * _soft((0.75 - across) / 0.05)
    spine = np.exp(-((chest.u / 0.07) ** 2))
    strength = (1.1 - 0.35 * drawn.old)[:, None, None]
    return np.asarray(
        strength * (0.085 * ribs + 0.13 * collar * _soft((across - 0.06) / 0.02) + 0.05 * spine), np.float32
    )


def _lesion(chest: _Chest, drawn: Drawn) -> F:
    """Each picture's lesion from 0 to 1; nothing where there is no finding."""
    place = drawn.place[:, :, None, None]
    sign = np.where(place[:, 0] < 0.5, np.float32(-1), np.float32(1))
    rough = 0.5 * _smooth(drawn.shape, chest.u.shape[-1])
    kind = drawn.finding[:, None, None]
    # Pneumonia: one irregular patch inside a lung.
    size = 0.10 + 0.09 * place[:, 3]
    x = (sign * chest.u - 0.30 - 0.26 * place[:, 1]) / size
    y = (chest.v + 0.38 - 0.72 * place[:, 2]) / (1.15 * size)
    patch = _soft(1.8 * (1 - x**2 - y**2 + rough)) * np.maximum(chest.lungs[0], chest.lungs[1])
    # Oedema: haze on both sides of the heart's root, wider below.
    x = (np.abs(chest.u) - 0.28) / (0.15 + 0.05 * place[:, 3])
    y = (chest.v - 0.02 - 0.10 * place[:, 2]) / 0.30
    haze = _soft(1.6 * (1 - x**2 - y**2 + rough)) * np.maximum(chest.lungs[0], chest.lungs[1])
    # Fracture: a small dense knot where a rib is broken, towards the side of the chest.
    x = (sign * chest.u - 0.52 - 0.16 * place[:, 1]) / 0.055
    y = (chest.v + 0.30 - 0.62 * place[:, 2]) / 0.055
    knot = _soft(3 * (1 - x**2 - y**2))
    return np.asarray(np.where(kind == 0, patch, np.where(kind == 1, haze, np.where(kind == 2, knot, 0))), np.float32)


def contrast_of(finding: NDArray[np.int8], severity: F) -> F:
    """How bright a lesion is against what is around it.

    >>> contrast_of(np.array([0, 0, -1], np.int8), np.array([0, 1, 1], np.float32)).round(2).tolist()
    [0.10000000149011612, 0.3199999928474426, 0.0]
    """
    low, high = np.array(CONTRAST, np.float32).T
    known = np.maximum(finding, 0)
    return np.where(finding < 0, np.float32(0), low[known] + severity * (high - low)[known])


def picture(drawn: Drawn, look: Look, side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The radiographs as the scanner stores them: rows x side x side, 8 bits."""
    chest = _Chest(drawn, side)
    lungs = np.maximum(chest.lungs[0], chest.lungs[1])
    texture = _smooth(np.asarray(rng.standard_normal((len(drawn), 9, 9)), np.float32), side)
    grey = 0.06 + 0.52 * chest.body - 0.36 * lungs * chest.body
    grey += np.maximum(0.22 * chest.centre, 0.30 * chest.heart * chest.body)
    grey -= 0.10 * _soft((0.035 - np.abs(chest.u)) / 0.02) * _soft((-0.30 - chest.v) / 0.05)  # windpipe
    grey += 0.16 * _soft((chest.v - 0.62) / 0.06) * chest.body  # belly
    grey += 0.05 * np.exp(
        -(((np.abs(chest.u) - 0.2) / 0.09) ** 2) - ((chest.v + 0.02) / 0.16) ** 2
    )  # roots of the lungs
    breast = _soft(3.5 * (1 - ((np.abs(chest.u) - 0.43) / 0.33) ** 2 - ((chest.v - 0.24) / 0.30) ** 2))
    grey += drawn.female[:, None, None] * (0.085 + 0.02 * drawn.body[:, 6, None, None]) * breast * chest.body
    grey += _bones(chest, drawn) * chest.body + 0.018 * texture * chest.body
    grey += contrast_of(drawn.finding, drawn.severity)[:, None, None] * _lesion(chest, drawn)
    grey = scanned(np.asarray(grey, np.float32) + 0.05 + 0.025 * drawn.pose[:, 3, None, None], look, rng)
    first, last = (round(share * side) for share in MARKER)
    tag = np.zeros((side, side), bool)
    thick = max(1, round(0.045 * side))
    tag[first:last, first : first + thick] = tag[last - thick : last, first:last] = True  # the letter L
    grey[drawn.marker[:, None, None] & tag] = 0.97
    return in_bytes(grey)


def scanned(grey: F, look: Look, rng: np.random.Generator) -> F:
    """What a scanner does to pictures from 0 to 1: contrast, gamma, vignetting, blur, noise."""
    side = grey.shape[-1]
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    edge = 1 - look.vignette * (axis[:, None] ** 2 + axis[None, :] ** 2) / 2
    grey = np.asarray(0.5 + look.contrast * (grey - 0.5), np.float32)
    grey = np.asarray(np.clip(grey, 0, 1) ** np.float32(look.gamma) * edge, np.float32)
    if look.blur > 0:
        for dimension in (1, 2):
            grey = gaussian_filter1d(grey, look.blur * side / 64, axis=dimension, mode="nearest")
    grey += look.noise * rng.standard_normal(grey.shape, np.float32)
    return np.asarray(grey, np.float32)


def in_bytes(grey: F) -> NDArray[np.uint8]:
    """Pixels from 0 to 1 as 8 bits.

    >>> in_bytes(np.array([[-1.0, 0.5, 2.0]], np.float32)).tolist()
    [[0, 128, 255]]
    """
    return np.asarray(np.rint(np.clip(grey, 0, 1) * 255), np.uint8)


def masks(drawn: Drawn, side: int) -> Masks:
    """The true regions and lesions of the same pictures."""
    chest = _Chest(drawn, side)
    lesions = (_lesion(chest, drawn) > 0.5) & (drawn.finding >= 0)[:, None, None]
    regions = np.where(chest.body > 0.5, REGIONS.index("rest of the body"), REGIONS.index("outside the body"))
    regions = np.where(chest.centre > 0.5, REGIONS.index("mediastinum"), regions)
    zone = np.digitize(chest.v, (-0.27, 0.08))  # the lung between its top and the dome, in three
    for i, lung in enumerate(chest.lungs):
        regions = np.where(lung > 0.5, 3 * i + zone, regions)
    regions = np.where(chest.heart > 0.5, REGIONS.index("heart"), regions)
    return Masks(regions.astype(np.int8), lesions)
