"""The generated cohort of paper 004 (fair, private, explained radiology): chest-like radiographs at ten hospitals.

Everything below was fixed before any model was trained on the cohort and is not adjusted to results. Figures are marked
*paper* (section 4.1 there), *solved* (from a figure printed there) or *chosen* (ours).

Hospitals: ten, each with its own scanner (`LOOKS`: contrast, gamma, noise, blur, vignetting); an eleventh has the first
    one's look, and so on. *Paper*: ten, 5,000 images each. *Chosen*: the looks; 500 images by default, for a laptop.
Patients: one in seven has two images (the same chest in another pose, with other noise). *Chosen*, so that the patient
    and the image are different units.
Sex, ethnicity: 55 % female; 40 % Caucasian, 30 % African-American, 15 % Hispanic, 15 % Asian. *Paper*. *Chosen*: a
    hospital's own shares are drawn around these (a Dirichlet distribution of weight 20 for ethnicity, +-5 points for sex).
Age group: 18-39 25 %, 40-64 40 %, 65+ 35 %. *Chosen*: the paper gives none.
Lesions: in 30 %, 40 % and 47 % of the three age groups, 40 % of all, the same for both sexes and for every ethnicity.
    Half pneumonia, 30 % oedema, 20 % fracture (*paper*: these three; *chosen*: shares). Severity is uniform from 0 to 1 and
    sets the contrast (`anatomy.CONTRAST`). *Chosen*.
What a picture shows of a person: women have breast shadows and a slightly narrower chest, the old fainter ribs and a
    larger heart. Ethnicity changes nothing in the picture. *Chosen*.

Planted faults, the reason for the cohort:

Label bias: at hospitals 2, 3, 5, 6, 8 and 9 a *woman's* lesion of severity under 0.6 is recorded as normal. The recorded
    share of abnormal images is then lower in women by 0.4 x 0.6 x 0.6 = 0.144 over all hospitals, though lesions are
    equally frequent. *Solved*: between the parity gaps of 0.115 (FedAvg) and 0.167 (centralised) that the paper prints.
    Which sex: women are underdiagnosed from chest radiographs (Seyyed-Kalantari et al., Nature Medicine 2021).
Scanner shortcut: a letter L in the top left corner is in 30 % of all pictures, for no reason. At hospitals 1, 4 and 7,
    where a portable machine prints it and the sicker are taken to that machine, it is in 85 % of the pictures with a lesion
    and in 10 % of those without. *Chosen*.
Hospital 10 has neither.

The outcome ``abnormal`` of the *training* table is what was recorded, bias included. That of the *test* table is the
truth, as a second reading by a panel would give it: with true labels a fairer model can also be a more accurate one.
Test pictures have the hospital's scanner and its shortcut. With ``test_fraction = 0`` (folds, or a hold-out from the
training table) tests are against recorded labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suture.cohorts.anatomy import FINDING_SHARES, REGIONS, Drawn, Look, Masks, masks, picture
from suture.cohorts.cohort import Cohort, CohortSite
from suture.errors import StudyError
from suture.site.schema import Image, Protected, Schema

__all__ = [
    "BIASED",
    "LOOKS",
    "MISSED_BELOW",
    "OUTCOME",
    "REGIONS",
    "SHORTCUT",
    "Truth",
    "radiographs",
    "schema",
    "truth",
]

OUTCOME = "abnormal"
SEXES, FEMALE = ("F", "M"), 0.55
ETHNICITIES = {"Caucasian": 0.40, "African-American": 0.30, "Hispanic": 0.15, "Asian": 0.15}
AGES = {"18-39": 0.25, "40-64": 0.40, "65+": 0.35}
LESIONS = (0.30, 0.40, 0.47)
"""How many of each age group have a lesion."""
BIASED = (1, 2, 4, 5, 7, 8)
"""Hospitals (counted from 0) where slight lesions of women are recorded as normal."""
MISSED_BELOW = 0.6
SHORTCUT = (0, 3, 6)
"""Hospitals (counted from 0) where the tag goes with lesions."""
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
    """What the tables do not say about one hospital's pictures, row for row. For evaluation, never for training."""

    patient: NDArray[np.int64]
    lesion: NDArray[np.bool_]
    """Whether there is a lesion, whatever was recorded."""
    finding: NDArray[np.int8]
    """-1 for none, else the index in `anatomy.FINDINGS`."""
    severity: NDArray[np.float32]
    tag: NDArray[np.bool_]
    """Whether the letter is in the corner."""
    masks: Masks


def schema(size: int = 64) -> Schema:
    """One image column, three group columns.

    >>> schema(32).width
    1024
    """
    return Schema(
        patient="patient_id",
        groups=("sex", "age_group", "ethnicity"),
        protected=Protected(column="sex", values=SEXES),
        features={"image": Image(size=size, label="Chest radiograph")},
    )


class _Drawings(NamedTuple):
    """One hospital's people and pictures before anything is drawn on a grid."""

    table: dict[str, NDArray[Any]]
    drawn: Drawn
    lesion: NDArray[np.bool_]


def radiographs(
    seed: int, *, hospitals: int = 10, images: int = 500, size: int = 64, test_fraction: float = 0.0
) -> Cohort:
    """The federation: ``images`` training pictures of ``size`` x ``size`` at each hospital, test pictures beside them.

    >>> site = radiographs(1, hospitals=1, images=16, size=16).sites[0]
    >>> site.table["image"].shape, site.table["image"].dtype, len(set(site.table["patient_id"].tolist()))
    ((16, 16, 16), dtype('uint8'), 14)
    """
    _check(hospitals, images, size, test_fraction)
    members = []
    for i in range(hospitals):
        parts = []
        for part, count in ((0, images), (1, round(test_fraction * images))):
            if not count:
                continue
            people = _people(seed, i, part, count)
            shown = np.concatenate(
                [
                    picture(chunk, LOOKS[i % len(LOOKS)], size, np.random.default_rng([seed, 0x8AD, i, part, 1, at]))
                    for at, chunk in _chunks(people.drawn)
                ]
            )
            parts.append({"patient_id": people.table["patient_id"], "image": shown, **people.table})
        members.append(CohortSite(f"hospital-{i + 1:02d}", "generated", parts[0], parts[1] if len(parts) > 1 else None))
    return Cohort(
        name="radiographs",
        outcome=OUTCOME,
        schema=schema(size),
        sites=tuple(members),
        description=(
            f"{hospitals * images:,} generated chest radiographs of {size} x {size} pixels at {hospitals} hospitals, in the "
            f"manner of paper 004, with a label bias and a scanner shortcut planted; seed {seed}. No real patient is in it."
        ),
    )


def truth(
    seed: int, hospital: int, *, test: bool = True, images: int = 500, size: int = 64, test_fraction: float = 0.2
) -> Truth:
    """The truth about one hospital's (counted from 0) test or training pictures, in the order of its table.

    Give the same seed and sizes as for the cohort; masks are drawn anew from the same numbers.

    >>> known = truth(1, 0, test=False, images=16, size=16)
    >>> known.masks.regions.shape, bool((known.masks.lesions.any(axis=(1, 2)) <= known.lesion).all())
    ((16, 16, 16), True)
    """
    _check(hospital + 1, images, size, test_fraction)
    people = _people(seed, hospital, int(test), round(test_fraction * images) if test else images)
    found = [masks(chunk, size) for _, chunk in _chunks(people.drawn)]
    drawn = people.drawn
    return Truth(
        people.table["patient_id"],
        people.lesion,
        drawn.finding,
        drawn.severity,
        drawn.marker,
        Masks(np.concatenate([one.regions for one in found]), np.concatenate([one.lesions for one in found])),
    )


def _people(seed: int, hospital: int, part: int, count: int) -> _Drawings:
    """Who is pictured at a hospital: part 0 trains, part 1 tests. The last eighth are second pictures of the first."""
    shares = np.random.default_rng([seed, 0x8AD, hospital])
    ethnicity_shares = shares.dirichlet(20 * np.array(list(ETHNICITIES.values())))
    female_share = FEMALE + shares.uniform(-0.05, 0.05)
    rng = np.random.default_rng([seed, 0x8AD, hospital, part])
    patients = count - count // 8
    female = rng.random(patients) < female_share
    ethnicity = rng.choice(len(ETHNICITIES), patients, p=ethnicity_shares)
    age = rng.choice(len(AGES), patients, p=list(AGES.values()))
    lesion = rng.random(patients) < np.array(LESIONS)[age]
    finding = np.where(lesion, rng.choice(len(FINDING_SHARES), patients, p=FINDING_SHARES), -1).astype(np.int8)
    severity = rng.random(patients, np.float32)
    person = Drawn(
        body=rng.standard_normal((patients, 8), np.float32),
        field=rng.standard_normal((patients, 2, 5, 5), np.float32),
        pose=np.zeros((patients, 4), np.float32),
        female=female,
        old=np.array([0, 0.5, 1], np.float32)[age],
        finding=finding,
        severity=severity,
        place=rng.random((patients, 4), np.float32),
        shape=rng.standard_normal((patients, 5, 5), np.float32),
        marker=np.zeros(patients, bool),
    )
    who = np.append(np.arange(patients), np.arange(count // 8))
    chance = TAG if hospital % 10 not in SHORTCUT else np.where(lesion, TAG_WITH_LESION, TAG_WITHOUT)[who]
    person = person.take(who)
    drawn = Drawn(
        **{
            **vars(person),
            "pose": rng.standard_normal((count, 4), np.float32),
            "marker": rng.random(count) < chance,
        }
    )
    missed = female & (severity < MISSED_BELOW) if hospital % 10 in BIASED and part == 0 else np.zeros(patients, bool)
    first = hospital * 10_000_000 + part * 5_000_000
    table: dict[str, NDArray[Any]] = {
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
    """The options, once, with the fix."""
    if not 1 <= hospitals <= 500:
        raise StudyError(f"cohort radiographs: hospitals must be from 1 to 500, found {hospitals}")
    if not 8 <= images <= 1_000_000:
        raise StudyError(f"cohort radiographs: images (a hospital) must be from 8 to 1,000,000, found {images}")
    if not 16 <= size <= 512:
        raise StudyError(f"cohort radiographs: size must be from 16 to 512 pixels, found {size}")
    if not 0 <= test_fraction <= 10:
        raise StudyError(f"cohort radiographs: test_fraction must be from 0 to 10, found {test_fraction}")
