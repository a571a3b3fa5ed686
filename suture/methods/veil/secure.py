"""VEIL's secure mode: statistics in few bytes of which only noisy sums over many hospitals are
opened.

| phase     | who answers              | numbers                                      | word    |
|-----------|--------------------------|----------------------------------------------|---------|
| `moments` | teams, each for a part   | 1, concepts of the part, squares, outcome    | 12 bits |
| `look`    | the same                 | gradients of the part at the base rate       | 13 bits |
| `step`    | all                      | gradients of the chosen concepts at the model | 16 bits |

Every row is a vector of norm 1 times something within [-1, 1], so that a patient's part has norm 1
in every phase: there is no bound to choose (Lemma 2 of docs/veil.md). Concepts are centred at their
released means (in steps of 1/127). A message is one array of packed words, added modulo 2^bits.
Teams: `teams.py`. What the server does with a sum: `fit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.methods.gradients import BIAS, as_centre, centred, residual, unit_weights
from suture.methods.veil.teams import Teams
from suture.models.concepts import Concepts, Remember
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, pack_words, wrapped
from suture.training import contributions as statistics

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

BITS = {"moments": 12, "look": 13, "step": 16}
FURTHEST = 16.0
"""The log odds of the base rate lie within this: the grid of a gradient follows from it, and must
not be finer than words hold."""
OUTCOME = 0.5
ROWS = math.sqrt(1 - OUTCOME**2)
"""Of a vector of norm 1 in "moments", the outcome's entry, and the length of the others together."""
SCALES = (2.0**-10, 2.0**10)
_CHOSEN: Remember[Patients, list[tuple[str, Rows, Floats]]] = Remember(1024)
LEVEL_BITS, LEVEL_UNIT = 20, 64.0
"""The noise multiplier travels as a whole number of 1/64, in digits that cannot overflow when they
are added."""


@dataclass(frozen=True)
class Layout:
    """What one sum of one phase consists of: known to the sites and to the server before rows are
    touched."""

    phase: str
    patients: int
    parties: int
    grid: Grid
    levels: int = 0

    @property
    def name(self) -> str:
        """The array's name on the wire, which ends in the length of its words."""
        return f"w{BITS[self.phase]}"

    @property
    def noise(self) -> float:
        """The deviation of the noise in the sum, in real units, when every hospital adds its
        own."""
        return self.grid.deviation * math.sqrt(self.parties) / self.grid.steps

    @property
    def size(self) -> int:
        """How many words."""
        return self.levels + self.grid.size


def layout(
    phase: str,
    teams: Teams,
    sum_: int,
    dictionary: Concepts,
    chosen: int,
    rate: float,
    rho: float | None,
    honest: float,
) -> Layout:
    """The layout of sum number ``sum_``; ``rate`` is the released base rate, ``chosen`` the number
    of chosen concepts."""
    members = teams.asked(phase)[sum_]
    patients, parties = teams.patients(members), teams.parties(members)
    part, levels = teams.part(sum_, len(dictionary)), 0
    # Residuals of a model that is right on average add up to twice the outcomes; a quarter more is
    # for noise.
    size, reach = chosen + 1, min(1.1, 2.5 * min(rate, 1 - rate))
    if phase == "moments":
        size, reach = 2 + len(part) + int(np.count_nonzero(dictionary.graded[part])), 1.1
        levels = -(-LEVEL_BITS // digit_bits(parties))
    elif phase == "look":
        size = len(part)
    step = 2 * reach * patients / 2 ** BITS[phase]
    least = max(1, math.ceil(honest * parties))
    return Layout(phase, patients, parties, Grid(1.0, rho, size, least, step), levels)


def digit_bits(parties: int) -> int:
    """Bits of one digit, such that the digits of all parties add up without overflow.

    >>> digit_bits(15), digit_bits(152)
    (8, 4)
    """
    return max(1, BITS["moments"] - parties.bit_length())


def level_digits(found: Layout, noise: float | None) -> NDArray[np.int64]:
    """The noise multiplier in digits: public, since how much noise is added follows from the
    study's promise."""
    level = 0 if noise is None else min(round(LEVEL_UNIT * noise), 2**LEVEL_BITS - 1)
    base = digit_bits(found.parties)
    return np.array([(level >> (base * i)) & (2**base - 1) for i in range(found.levels)], np.int64)


def packed(found: Layout, words: Sequence[NDArray[np.int64]]) -> NDArray[np.uint8]:
    """A site's share of a sum, as it travels."""
    return pack_words(np.concatenate(words), BITS[found.phase])


def opened(found: Layout, words: NDArray[np.int64], sites: int) -> tuple[Floats, float | None]:
    """A sum of ``sites`` answers in real units, and the noise multiplier where it came along (None:
    none)."""
    if words.shape != (found.size,):
        raise RunError(
            f"phase {found.phase!r}: expected {found.size} words in a sum, found {words.shape}"
        )
    bits, size = BITS[found.phase], found.grid.size
    base, digits = digit_bits(found.parties), words[size:] % 2**bits
    level = sum(int(digit) << (base * i) for i, digit in enumerate(digits)) / sites
    total = found.grid.open(wrapped(words[:size], bits))
    return total, level / LEVEL_UNIT if level else None


@dataclass(frozen=True)
class Model:
    """What the server sent of the model: log odds of the centre, and of the chosen concepts
    weights (of the centred concepts over ``scale``), numbers and centres."""

    bias: float
    weights: NDArray[np.float32]
    ids: NDArray[np.int32]
    centre: NDArray[np.int8]
    scale: float = 1.0


def contributions(
    phase: str,
    data: Patients,
    values: Rows,
    model: Model,
    part: NDArray[np.int64],
    dictionary: Concepts,
) -> tuple[NDArray[np.floating], Floats]:
    """What rows add to the sum of a phase; a patient's part has norm 1 at most (Lemma 2).

    ``part`` are the concepts that a look or a moment is about.
    """
    if phase == "moments":
        here = values[:, part]
        one, y = np.ones((data.rows, 1), np.float32), (data.y > 0).astype(np.float32)
        rows = np.hstack([one, here, here[:, dictionary.graded[part]] ** 2])
        # The outcome's entry is not divided by the norm: graver patients have longer rows, and the
        # rate would be too low.
        each = statistics.patient_weights(one, 1.0, data.starts)
        unit = rows * (ROWS * unit_weights(rows, data.starts) / each)[:, None]
        return np.hstack([unit, OUTCOME * y[:, None]]), each
    if phase == "look":  # at the base rate: no concept has a weight yet
        rows = values[:, part] - as_centre(model.centre)
        base = statistics.risk(np.full(data.rows, model.bias))
        return rows, unit_weights(rows, data.starts) * residual(base, data.y)
    rows, weights = _chosen(data, values, model, dictionary)
    theta = np.append(model.bias / BIAS, model.weights)
    p = statistics.risk(statistics.logits(rows, theta, 0.0))
    return rows, weights * residual(p, data.y)


def _chosen(
    data: Patients, values: Rows, model: Model, dictionary: Concepts
) -> tuple[Rows, Floats]:
    """The centred chosen concepts of every row, and the rows' weights.

    From the look on, what is chosen and its centres stay, so the last ones are kept for the next
    round; only the last, or a server that asks for others every time would fill the site's memory.
    """
    asked = f"{model.ids.tolist()} {model.centre.tolist()} {model.scale}"
    label, kept = f"{dictionary.digest} {asked}", _CHOSEN.get(data, list)
    if not (kept and kept[0][0] == label):
        found = centred(values[:, model.ids], model.centre, model.scale, data.starts)
        kept[:] = [(label, *found)]
    return kept[0][1], kept[0][2]
