"""The generated cohort of fair, private, explained radiology: chest-like radiographs, drawn from a
few numbers per patient (shapes, bones, lesions, the scanner's look), at ten hospitals.

Coordinates run from -1 to 1, ``u`` from the left to the right of the picture, ``v`` from its top to
its bottom, so the patient's right lung is on the left. Dense is bright, as in DICOM's MONOCHROME2.
Everything that is random about a patient or a picture is in `Drawn`; `picture` and `masks` are
functions of it, so the true outlines need not be stored. Figures, and the two planted faults:
docs/ready-federations.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d

from suture.cohorts import Cohort, CohortSite, Columns, within
from suture.schema.table import Image, Protected, Schema

F = NDArray[np.float32]
FINDINGS = ("pneumonia", "oedema", "fracture")
"""The three kinds of abnormal that the paper names (section 4.1)."""
FINDING_SHARES = (0.5, 0.3, 0.2)
CONTRAST = ((0.10, 0.32), (0.06, 0.22), (0.20, 0.55))
"""How much brighter than the lung each finding is, from slightest to most severe (full range 1)."""
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
MARKER = (0.05, 0.17)  # the tag's square, top left, as shares of the picture's side


class Look(NamedTuple):
    """A scanner: what it does to every picture."""

    contrast: float
    gamma: float
    noise: float
    blur: float  # standard deviation in pixels of a 64 x 64 picture
    vignette: float


@dataclass(frozen=True)
class Drawn:
    """What is random about some pictures. Pictures of one patient share all but ``pose``."""

    body: F  # n x 8: standard normal numbers behind the sizes of chest, lungs, heart, ribs
    field: F  # n x 2 x 5 x 5: the coarse displacement
    pose: F  # n x 4: shift, turn, exposure
    female: NDArray[np.bool_]
    old: F  # 0, 0.5 or 1, by age group
    finding: NDArray[np.int8]  # -1 for none, else the index in `FINDINGS`
    severity: F  # from 0 (slight) to 1
    place: F  # n x 4: where a lesion is and how large, standard uniform numbers
    shape: F  # n x 5 x 5: a coarse field that makes a lesion irregular
    marker: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.female)

    def take(self, rows: NDArray[np.intp] | slice) -> Drawn:
        """Some of the pictures."""
        return Drawn(**{name: values[rows] for name, values in vars(self).items()})


class Masks(NamedTuple):
    """The truth about some pictures, for evaluation only."""

    regions: NDArray[np.int8]  # rows x side x side: the index in `REGIONS` of each pixel
    lesions: NDArray[np.bool_]
    """rows x side x side: where the lesion is (nowhere in a normal picture)."""


def _soft(x: NDArray[np.floating]) -> F:
    """1 well inside (x large), 0 well outside, in float32."""
    return np.asarray(0.5 + 0.5 * np.tanh(x), np.float32)


def _smooth(coarse: F, side: int) -> F:
    """A coarse grid of numbers (last two axes) as a smooth field: a cosine series."""
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
        shifted = u - 0.04 * pose[:, 0] + turn * v, v - 0.04 * pose[:, 1] - turn * u
        self.u: F = (shifted[0] / wide + 0.035 * moved[:, 0]).astype(np.float32)
        self.v: F = (shifted[1] / tall + 0.035 * moved[:, 1]).astype(np.float32)
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
        old, female = drawn.old[:, None, None], drawn.female[:, None, None]
        large = 0.31 + 0.02 * size[:, 3] + 0.02 * old - 0.012 * female
        x, y = self.u - 0.12, self.v - 0.24
        oval = 1 - ((x + 0.35 * y) / large) ** 2 - ((y - 0.2 * x) / (0.95 * large)) ** 2
        self.heart = _soft(4 * oval)
        narrow = _soft((0.13 + 0.01 * size[:, 4] - across) / 0.035)
        self.centre = narrow * _soft((0.62 - self.v) / 0.1) * self.body


def _bones(chest: _Chest, drawn: Drawn) -> F:
    """Ribs, collar bones and spine; fainter in the old."""
    across: F = np.abs(chest.u)
    spacing = 0.165
    course = (chest.v - 0.30 * across + 0.55 * np.maximum(across - 0.35, 0) ** 2) / spacing
    course += 0.12 * drawn.body[:, 5, None, None]
    ribs = np.exp(-(((course - np.round(course)) * spacing / 0.032) ** 2))
    ribs = ribs * _soft((0.82 - across) / 0.05) * _soft((across - 0.1) / 0.03)
    ribs = ribs * _soft((0.6 - chest.v) / 0.08)
    collar = np.exp(-(((chest.v + 0.70 - 0.14 * across) / 0.032) ** 2))
    collar = collar * _soft((0.75 - across) / 0.05)
    spine = np.exp(-((chest.u / 0.07) ** 2))
    strength = (1.1 - 0.35 * drawn.old)[:, None, None]
    bones = 0.085 * ribs + 0.13 * collar * _soft((across - 0.06) / 0.02) + 0.05 * spine
    return np.asarray(strength * bones, np.float32)


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
    drawn_one = np.where(kind == 0, patch, np.where(kind == 1, haze, np.where(kind == 2, knot, 0)))
    return np.asarray(drawn_one, np.float32)


def contrast_of(finding: NDArray[np.int8], severity: F) -> F:
    """How bright a lesion is against what is around it."""
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
    # windpipe
    grey -= 0.10 * _soft((0.035 - np.abs(chest.u)) / 0.02) * _soft((-0.30 - chest.v) / 0.05)
    grey += 0.16 * _soft((chest.v - 0.62) / 0.06) * chest.body  # belly
    roots = -(((np.abs(chest.u) - 0.2) / 0.09) ** 2) - ((chest.v + 0.02) / 0.16) ** 2
    grey += 0.05 * np.exp(roots)  # roots of the lungs
    oval = 1 - ((np.abs(chest.u) - 0.43) / 0.33) ** 2 - ((chest.v - 0.24) / 0.30) ** 2
    dense = drawn.female[:, None, None] * (0.085 + 0.02 * drawn.body[:, 6, None, None])
    grey += dense * _soft(3.5 * oval) * chest.body  # breasts
    grey += _bones(chest, drawn) * chest.body + 0.018 * texture * chest.body
    grey += contrast_of(drawn.finding, drawn.severity)[:, None, None] * _lesion(chest, drawn)
    exposed = np.asarray(grey, np.float32) + 0.05 + 0.025 * drawn.pose[:, 3, None, None]
    grey = scanned(exposed, look, rng)
    first, last = (round(share * side) for share in MARKER)
    tag = np.zeros((side, side), bool)
    thick = max(1, round(0.045 * side))
    tag[first:last, first : first + thick] = True  # the letter L
    tag[last - thick : last, first:last] = True
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
    """Pixels from 0 to 1 as 8 bits."""
    return np.asarray(np.rint(np.clip(grey, 0, 1) * 255), np.uint8)


def masks(drawn: Drawn, side: int) -> Masks:
    """The true regions and lesions of the same pictures."""
    chest = _Chest(drawn, side)
    lesions = (_lesion(chest, drawn) > 0.5) & (drawn.finding >= 0)[:, None, None]
    heart, centre, rest, outside = range(REGIONS.index("heart"), len(REGIONS))
    regions = np.where(chest.body > 0.5, rest, outside)
    regions = np.where(chest.centre > 0.5, centre, regions)
    zone = np.digitize(chest.v, (-0.27, 0.08))  # the lung between its top and the dome, in three
    for i, lung in enumerate(chest.lungs):
        regions = np.where(lung > 0.5, 3 * i + zone, regions)
    regions = np.where(chest.heart > 0.5, heart, regions)
    return Masks(regions.astype(np.int8), lesions)


OUTCOME = "abnormal"
SEXES, FEMALE = ("F", "M"), 0.55
ETHNICITIES = {"Caucasian": 0.40, "African-American": 0.30, "Hispanic": 0.15, "Asian": 0.15}
AGES = {"18-39": 0.25, "40-64": 0.40, "65+": 0.35}
LESIONS = (0.30, 0.40, 0.47)  # how many of each age group have a lesion
BIASED = (1, 2, 4, 5, 7, 8)
"""Hospitals (counted from 0) where slight lesions of women are recorded as normal."""
MISSED_BELOW = 0.6
SHORTCUT = (0, 3, 6)  # hospitals (counted from 0) where the tag goes with lesions
TAG, TAG_WITH_LESION, TAG_WITHOUT = 0.30, 0.85, 0.10
LOOKS = (
    Look(contrast=1.00, gamma=1.00, noise=0.020, blur=0.4, vignette=0.05),
    Look(contrast=0.80, gamma=1.20, noise=0.030, blur=0.0, vignette=0.20),
    Look(contrast=1.20, gamma=0.85, noise=0.025, blur=0.6, vignette=0.00),
    Look(contrast=0.90, gamma=0.70, noise=0.045, blur=0.3, vignette=0.10),
    Look(contrast=1.10, gamma=1.40, noise=0.015, blur=0.8, vignette=0.15),
    Look(contrast=0.75, gamma=1.00, noise=0.035, blur=0.2, vignette=0.30),
    Look(contrast=1.00, gamma=1.30, noise=0.050, blur=0.5, vignette=0.00),
    Look(contrast=1.15, gamma=0.90, noise=0.030, blur=1.0, vignette=0.25),
    Look(contrast=0.85, gamma=0.80, noise=0.020, blur=0.7, vignette=0.10),
    Look(contrast=1.05, gamma=1.10, noise=0.040, blur=0.0, vignette=0.05),
)
_CHUNK = 128  # pictures drawn at a time: memory stays at some tens of megabytes


class Truth(NamedTuple):
    """What the tables do not say about pictures: for evaluation, never for training."""

    patient: NDArray[np.int64]
    lesion: NDArray[np.bool_]  # whether there is a lesion, whatever was recorded
    finding: NDArray[np.int8]  # -1 for none, else the index in `FINDINGS`
    severity: NDArray[np.float32]
    tag: NDArray[np.bool_]  # whether the letter is in the corner
    masks: Masks


def schema(size: int = 64) -> Schema:
    """One image column, three group columns."""
    return Schema(
        patient="patient_id",
        groups=("sex", "age_group", "ethnicity"),
        protected=Protected(column="sex", values=SEXES),
        features={"image": Image(size=size, label="Chest radiograph")},
    )


class _Drawings(NamedTuple):
    """One hospital's people and pictures before anything is drawn on a grid."""

    table: Columns
    drawn: Drawn
    lesion: NDArray[np.bool_]


def radiographs(
    seed: int, *, hospitals: int = 10, images: int = 500, size: int = 64, test_fraction: float = 0.0
) -> Cohort:
    """The federation: ``images`` training pictures of ``size`` x ``size`` at each hospital, test
    pictures beside them.
    """
    _check(hospitals, images, size, test_fraction)
    members = []
    for i in range(hospitals):
        look, parts = LOOKS[i % len(LOOKS)], []
        for part, count in enumerate((images, round(test_fraction * images))):
            people = _people(seed, i, part, count) if count else None
            if people:
                shown = []
                for at, chunk in _chunks(people.drawn):
                    rng = np.random.default_rng([seed, 0x8AD, i, part, 1, at])
                    shown.append(picture(chunk, look, size, rng))
                first = {"patient_id": people.table["patient_id"], "image": np.concatenate(shown)}
                parts.append({**first, **people.table})
        test = parts[1] if len(parts) > 1 else None
        members.append(CohortSite(f"hospital-{i + 1:02d}", "generated", parts[0], test))
    words = (
        f"{hospitals * images:,} generated chest radiographs of {size} x {size} pixels at "
        f"{hospitals} hospitals, with a label bias and a scanner shortcut planted; seed {seed}. No "
        "real patient is in it."
    )
    return Cohort("radiographs", OUTCOME, schema(size), tuple(members), words)


def truth(
    seed: int,
    hospital: int,
    *,
    test: bool = True,
    images: int = 500,
    size: int = 64,
    test_fraction: float = 0.2,
) -> Truth:
    """The truth about one hospital's (counted from 0) test or training pictures, in the order of
    its table.

    Give the same seed and sizes as for the cohort; masks are drawn anew from the same numbers.
    """
    _check(hospital + 1, images, size, test_fraction)
    people = _people(seed, hospital, int(test), round(test_fraction * images) if test else images)
    drawn, names = people.drawn, people.table["patient_id"]
    found = [masks(chunk, size) for _, chunk in _chunks(drawn)]
    outlines = Masks(*(np.concatenate(some) for some in zip(*found, strict=True)))
    return Truth(names, people.lesion, drawn.finding, drawn.severity, drawn.marker, outlines)


def _people(seed: int, hospital: int, part: int, count: int) -> _Drawings:
    """Part 0 trains, part 1 tests. The last eighth are second pictures of the first."""
    shares = np.random.default_rng([seed, 0x8AD, hospital])
    ethnicity_shares = shares.dirichlet(20 * np.array(list(ETHNICITIES.values())))
    female_share = FEMALE + shares.uniform(-0.05, 0.05)
    rng = np.random.default_rng([seed, 0x8AD, hospital, part])
    patients = count - count // 8
    female = rng.random(patients) < female_share
    ethnicity = rng.choice(len(ETHNICITIES), patients, p=ethnicity_shares)
    age = rng.choice(len(AGES), patients, p=list(AGES.values()))
    lesion = rng.random(patients) < np.array(LESIONS)[age]
    kind = rng.choice(len(FINDING_SHARES), patients, p=FINDING_SHARES)
    severity = rng.random(patients, np.float32)
    person = Drawn(
        body=rng.standard_normal((patients, 8), np.float32),
        field=rng.standard_normal((patients, 2, 5, 5), np.float32),
        pose=np.zeros((patients, 4), np.float32),
        female=female,
        old=np.array([0, 0.5, 1], np.float32)[age],
        finding=np.where(lesion, kind, -1).astype(np.int8),
        severity=severity,
        place=rng.random((patients, 4), np.float32),
        shape=rng.standard_normal((patients, 5, 5), np.float32),
        marker=np.zeros(patients, bool),
    )
    who = np.append(np.arange(patients), np.arange(count // 8))
    chance = np.where(lesion, TAG_WITH_LESION, TAG_WITHOUT)[who]
    if hospital % 10 not in SHORTCUT:
        chance = np.full(count, TAG)
    pose = rng.standard_normal((count, 4), np.float32)
    drawn = replace(person.take(who), pose=pose, marker=rng.random(count) < chance)
    missed = female & (severity < MISSED_BELOW) & (hospital % 10 in BIASED and part == 0)
    first = hospital * 10_000_000 + part * 5_000_000
    table: Columns = {
        "patient_id": first + who,
        "sex": np.where(female, *SEXES)[who],
        "age_group": np.array(list(AGES))[age][who],
        "ethnicity": np.array(list(ETHNICITIES))[ethnicity][who],
        OUTCOME: (lesion & ~missed).astype(np.int8)[who],
    }
    return _Drawings(table, drawn, lesion[who])


def _chunks(drawn: Drawn) -> Iterator[tuple[int, Drawn]]:
    for at in range(0, len(drawn), _CHUNK):
        yield at, drawn.take(slice(at, at + _CHUNK))


def _check(hospitals: int, images: int, size: int, test_fraction: float) -> None:
    within("radiographs", "hospitals", hospitals, 1, 500)
    within("radiographs", "images (per hospital)", images, 8, 1_000_000)
    within("radiographs", "size", size, 16, 512)
    within("radiographs", "test_fraction", test_fraction, 0, 10)
