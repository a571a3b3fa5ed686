"""VEIL's secure mode: statistics in few bytes of which only noisy sums over many hospitals are
opened.

| phase       | who answers                      | numbers                                  | word    | a patient's norm |
|-------------|----------------------------------|------------------------------------------|---------|------------------|
| `moments`   | teams 1, 2, ..., each for a part | outcomes, means, squares of the part     | 10 bits | 1, `SPREAD`      |
| `look`      | the same                         | gradients of the part at the base rate   | 11 bits | `LOOK`           |
| `curvature` | team 0                           | products of all pairs of chosen concepts | 11 bits | `NORM`           |
| `step`      | all                              | gradients of the chosen at the model     | 13 bits | `NORM`           |

Concepts are centred at their released means (in steps of 1/127): a patient with ordinary values is
then a short vector, so that the bound on one patient's part can be small. A message is one array of
packed words, added modulo 2^bits. Teams: `veil_teams.py`. What the server does with a sum:
`veil_newton.py`. Proofs: docs/veil.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.methods.veil.teams import Teams
from suture.models.concepts import Concepts, Remember
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, pack_words, wrapped
from suture.training import contributions as statistics

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

BITS = {"moments": 10, "look": 11, "curvature": 11, "step": 13}
SPREAD, LOOK, NORM = 5.0, 4.0, 2.5
"""Bounds on the norm of a patient's concepts: all as they are, all centred, the chosen ones centred
with a 1 for the bias. Of a part of the concepts the bound is smaller, by the root of the part's
share."""
FURTHEST = 16.0
"""The log odds of the base rate lie within this: the grid of a step follows from it, and must not
be finer than words hold."""
REACH = 1.0
"""The bias's gradient may be this far from its forecast, in patients times rate (1 - rate), and a
concept's half of it; further, it would wrap around, and the step would be wrong. On the `icu`
cohort 0.45 and 0.07 are usual; in one training of 60 a concept, rare in the team that measures
curvature, was 0.26 off after the first step."""
_CHOSEN: Remember[Patients, list[tuple[str, Rows, Floats]]] = Remember(1024)
LEVEL_BITS, LEVEL_UNIT = 20, 64.0
"""The noise multiplier travels as a whole number of 1/64, in digits that cannot overflow when they
are added."""


@dataclass(frozen=True)
class Piece:
    """One vector of a message: its grid, and the noise's cost."""

    name: str
    grid: Grid


@dataclass(frozen=True)
class Layout:
    """What one sum of one phase consists of: known to the sites and to the server before rows are
    touched."""

    phase: str
    patients: int
    parties: int
    pieces: tuple[Piece, ...]
    levels: int = 0

    @property
    def name(self) -> str:
        """The array's name on the wire, which ends in the length of its words."""
        return f"w{BITS[self.phase]}"

    @property
    def noises(self) -> dict[str, float]:
        """The deviation of the noise in each piece of the sum, in real units, when every hospital
        adds its own."""
        return {
            piece.name: piece.grid.deviation * math.sqrt(self.parties) / piece.grid.steps
            for piece in self.pieces
        }

    @property
    def size(self) -> int:
        """How many words."""
        return self.levels + sum(piece.grid.size for piece in self.pieces)


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
    least = max(1, math.ceil(honest * parties))

    def piece(name: str, sensitivity: float, share: float, size: int, reach: float) -> Piece:
        step = 2 * reach * patients / 2 ** BITS[phase]
        return Piece(
            name, Grid(sensitivity, None if rho is None else rho * share, size, least, step)
        )

    levels = 0
    if phase == "moments":
        part = teams.part(sum_, len(dictionary))
        graded = int(np.count_nonzero(dictionary.graded[part]))
        limit = _limit(SPREAD, len(part), len(dictionary))
        pieces = [piece("positives", 1.0, 0.2, 1, 1.1)]
        pieces += [piece("means", limit, 0.5, len(part), 1.1)] if len(part) else []
        pieces += [piece("squares", limit**2, 0.3, graded, 1.1)] if graded else []
        levels = -(-LEVEL_BITS // digit_bits(parties))
    elif phase == "look":
        size = len(teams.part(sum_, len(dictionary)))
        # All gradients at the base rate are within 2 x rate x patients; a quarter more is for
        # noise.
        pieces = [
            piece("gradient", _limit(LOOK, size, len(dictionary)), 1.0, size, min(1.1, 2.5 * rate))
        ]
    elif phase == "curvature":
        pieces = [piece("products", NORM**2, 1.0, (chosen + 1) * (chosen + 2) // 2, 1.5)]
    elif phase == "step":
        unit = rate * (1 - rate)
        pieces = [piece("bias", 1.0, 0.15, 1, REACH * unit)]
        pieces += [piece("gradient", NORM, 0.85, chosen, REACH / 2 * unit)] if chosen else []
    else:
        raise RunError(f"the phase {phase!r} asks for nothing")
    return Layout(phase, patients, parties, tuple(pieces), levels)


def _limit(whole: float, size: int, concepts: int) -> float:
    """The bound for a part of the concepts."""
    return whole * math.sqrt(max(size, 1) / concepts)


def digit_bits(parties: int) -> int:
    """Bits of one digit, such that the digits of all parties add up without overflow.

    >>> digit_bits(15), digit_bits(152)
    (6, 2)
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


def opened(
    found: Layout, words: NDArray[np.int64], sites: int, near: Floats | None = None
) -> tuple[dict[str, Floats], float | None]:
    """A sum of ``sites`` answers in real units, piece by piece, and the noise multiplier where it
    came along (None: none).

    ``near`` is what the server expects: words are known modulo 2^bits only, and what is closest to
    it is taken.
    """
    if words.shape != (found.size,):
        raise RunError(
            f"phase {found.phase!r}: expected {found.size} words in a sum, found {words.shape}"
        )
    parts, start = {}, 0
    for piece in found.pieces:
        here = words[start : start + piece.grid.size]
        about = 0.0 if near is None else near[start : start + piece.grid.size] * piece.grid.steps
        parts[piece.name] = piece.grid.open(wrapped(here, BITS[found.phase], about))
        start += piece.grid.size
    base = digit_bits(found.parties)
    digits = words[start:] % 2 ** BITS[found.phase]
    level = sum(int(digit) << (base * i) for i, digit in enumerate(digits)) / sites
    return parts, level / LEVEL_UNIT if level else None


@dataclass(frozen=True)
class Model:
    """What the server sent of the model: a bias, and of the chosen concepts weights, numbers and
    centres."""

    bias: float
    weights: NDArray[np.float32]
    ids: NDArray[np.int32]
    centre: NDArray[np.int8]

    @property
    def centred(self) -> NDArray[np.float32]:
        """The same model of a 1 and the *centred* concepts.

        >>> Model(1.0, np.array([2.0], np.float32), np.array([5], np.int32), np.array([127], np.int8)).centred.tolist()
        [3.0, 2.0]
        """
        bias = self.bias + float(centres(self.centre) @ self.weights)
        return np.concatenate([np.array([bias], np.float32), self.weights])


def contributions(
    name: str,
    phase: str,
    data: Patients,
    values: Rows,
    model: Model,
    part: NDArray[np.int64],
    dictionary: Concepts,
) -> tuple[NDArray[np.floating], Floats]:
    """What rows add to one piece of a phase; a patient's part is within its sensitivity in `layout`
    (Lemma 2).

    ``part`` are the concepts that a look or a moment is about.
    """
    if phase == "moments":
        if name == "positives":
            one = np.ones((data.rows, 1), np.float32)
            return one, statistics.patient_weights(one, 1.0, data.starts) * data.y
        here, limit = values[:, part], _limit(SPREAD, len(part), len(dictionary))
        if name == "means":
            return here, statistics.patient_weights(here, limit, data.starts, power=1)
        graded = here[:, dictionary.graded[part]]
        return graded.astype(np.float64) ** 2, statistics.patient_weights(
            graded, limit, data.starts
        )
    if phase == "look":  # at the base rate: no concept has a weight yet
        here = values[:, part] - centres(model.centre)
        w = statistics.patient_weights(
            here, _limit(LOOK, len(part), len(dictionary)), data.starts, power=1
        )
        return here, w * (data.y - statistics.risk(np.array([model.bias])))
    basis, w = _chosen(data, values, model, dictionary)
    if phase == "curvature":
        return statistics.row_products(basis), w
    weights = w * (data.y - statistics.risk(statistics.logits(basis, model.centred, 0.0)))
    return (basis[:, :1] if name == "bias" else basis[:, 1:]), weights


def _chosen(
    data: Patients, values: Rows, model: Model, dictionary: Concepts
) -> tuple[Rows, Floats]:
    """A 1 and the centred chosen concepts of every row, and the rows' weights.

    From the look on, what is chosen and its centres stay, so the last ones are kept for the next
    round; only the last, or a server that asks for others every time would fill the site's memory.
    """
    label = f"{dictionary.digest} {model.ids.tolist()} {model.centre.tolist()}"
    kept = _CHOSEN.get(data, list)
    if kept and kept[0][0] == label:
        return kept[0][1], kept[0][2]
    one = np.ones((data.rows, 1), np.float32)
    basis = np.ascontiguousarray(np.hstack([one, values[:, model.ids] - centres(model.centre)]))
    weights = statistics.patient_weights(basis, NORM, data.starts)
    kept[:] = [(label, basis, weights)]
    return basis, weights


def centres(code: NDArray[np.int8]) -> NDArray[np.float32]:
    """Centres from their bytes.

    >>> centres(np.array([-127, 0], np.int8)).tolist()
    [-1.0, 0.0]
    """
    found: NDArray[np.float32] = code.astype(np.float32) / np.float32(127)
    return found
