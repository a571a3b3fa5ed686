"""An additive model by noisy gradients: what every feature adds to the log odds is a line with two
hinges, fitted by secure sums of which one patient's part has norm 1.

Suture's own; the theorem, its proof and the experiments behind every constant: docs/additive.md. It
stands on noise in the sum (Kairouz, Liu, Steinke 2021, arXiv:2102.06387) and on averaged gradient
descent with momentum (Polyak & Juditsky 1992; Polyak 1964).

| here | docs/additive.md |
|---|---|
| `terms` of the schema | x, d numbers within [-1, 1] of each row, from public bounds and normal ranges |
| release 1: `centre`, `scale`, `rate` | m, c, pi from the sum of (1, x, y) / norm |
| `theta` | theta, the model: log odds = theta P with P = (1/4, (x - m) / c) |
| a gradient | the sum of P / norm(P) times the residual (p - y) / max(p, 1 - p) |
| noise multiplier z | of one gradient: its noise is z, because a patient's part has norm 1 |
| `link.share` | f, the part of the budget (1 / z^2 added up) that release 1 gets |
| `link` | how scores and outcomes belong together: log odds as above, or log hazards (docs/statistics.md) |

Rounds: release 1, then gradients. Nothing is sampled. With ``local_noise`` every site adds all of
the noise itself, and no secure sum is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Arrays, Method, Needs, State
from suture.methods.declared import Citation, Declared, Fit, Public, Settings, Setup
from suture.methods.gradients import (
    BIAS,
    FEW,
    REACH,
    as_centre,
    centred,
    momentum,
    unit_weights,
    whole_step,
)
from suture.methods.links import LOGISTIC, Link, link_of
from suture.models.concepts import Concepts, Remember, Terms, terms
from suture.models.network import terms_of
from suture.privacy.door import Payload, Rows, Sealed, Session
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share, pack_words, unpack_words, wrapped
from suture.schema.message import Field
from suture.schema.outcome import Classes, Survival
from suture.schema.table import Number, Schema
from suture.training import contributions as statistics

Floats = NDArray[np.float64]
LEAST_ROUNDS = 4
CAP = 18.0
"""A whole step, momentum included, is at most CAP over the rarer outcome's share: larger ones
swing."""
USUAL = 0.15
LEAST, MOST = 40, 80
"""Gradients that `schedule` asks for: with 200 no table was better than with 80."""
STRONGEST = 1024.0
SCALES = (2.0**-10, 2.0**10)
FINE = 2.0**-10
"""The grid without noise."""
STEPS = 8
"""Steps of the grid in a site's deviation, at least: rounding then costs 3 % of the noise's
variance at most, divided by the sites that are counted on."""
_TERMS: Remember[Patients, NDArray[np.float32]] = Remember(1024)
_CENTRED: Remember[Patients, list[tuple[str, NDArray[np.float32], Floats]]] = Remember(1024)
_TESTED: Remember[NDArray[np.float32], NDArray[np.float32]] = Remember(1024)
_SMALL = 1 << 22
"""Up to this many values the terms of rows to predict for are remembered from round to round."""


@dataclass(frozen=True)
class Direction:
    """Which way one number's shape may go: signs of its slope below, in and above the normal range
    (0: either), the places of its terms (-1: it has none), and their widths over the line's."""

    signs: tuple[int, int, int]
    line: int
    below: int
    above: int
    ratios: tuple[float, float]

    def hold(self, theta: Floats) -> None:
        """Change the terms' weights by no more than that takes. What is allowed is convex, so that
        averages are allowed too."""
        down, inside, up = self.signs
        if inside:
            theta[self.line] = inside * max(0.0, inside * theta[self.line])
        if self.below >= 0:  # the slope below is that of the line less the hinge's
            limit = theta[self.line] * self.ratios[0]
            theta[self.below] = (min if down > 0 else max)(theta[self.below], limit)
        if self.above >= 0:
            limit = -theta[self.line] * self.ratios[1]
            theta[self.above] = (max if up > 0 else min)(theta[self.above], limit)


SIGNS = {"high": (1, 1, 1), "low": (-1, -1, -1), "both": (-1, 0, 1)}
"""By ``worse``: slopes of the risk below, in and above the normal range."""


def directions(schema: Schema) -> tuple[Direction, ...]:
    """The directions that a schema declares."""
    known = terms(schema)
    places: dict[str, dict[str, int]] = {}
    for i, concept in enumerate(known.items):
        places.setdefault(concept.feature, {})[concept.kind] = i
    found = []
    for name, feature in schema.features.items():
        if isinstance(feature, Number) and feature.worse is not None:
            at = places[name]
            width = known.items[at["value"]].width
            below, above = at.get("below", -1), at.get("above", -1)
            ratios = (known.items[below].width / width, known.items[above].width / width)
            found.append(Direction(SIGNS[feature.worse], at["value"], below, above, ratios))
    return tuple(found)


@dataclass(frozen=True)
class Additive(Method):
    """Centre privately, then noisy gradients. ``parties``, ``patients`` and ``honest`` are public:
    the sites, their patients, and of how many sites the noise is counted on."""

    terms: Terms
    rounds: int = 60
    parties: int = 1
    patients: int = 1 << 40
    honest: int = 1
    local_noise: bool = False
    features: int = 0
    """For reading: the most features that keep a shape; 0: all."""
    directions: tuple[Direction, ...] = ()
    """For reading: numbers whose shape rises or falls as the schema's ``worse`` says."""
    link: Link = LOGISTIC
    name: str = "additive"
    phased: bool = True
    by_size: bool = False
    """A round costs the same at every site."""

    def __post_init__(self) -> None:
        if self.rounds < LEAST_ROUNDS:
            raise StudyError(
                f"method.rounds: additive needs at least {LEAST_ROUNDS}, found {self.rounds}"
            )

    @property
    def label(self) -> str:
        """As written in a table."""
        return "Additive (local noise)" if self.local_noise else "Additive"

    @property
    def needs(self) -> Needs:
        """With local noise every answer may be seen."""
        return "each" if self.local_noise else "secure sum"

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than
        promised."""
        return 0 if self.local_noise else self._counted

    @property
    def _counted(self) -> int:
        """How many sites' noise makes up what is promised."""
        return 1 if self.local_noise else max(1, min(self.honest, self.parties))

    @property
    def gradients(self) -> int:
        """T."""
        return self.rounds - 1

    @property
    def momentum(self) -> float:
        """beta."""
        return momentum(self.rounds)

    # --- privacy: known before rows are touched ----------------------------------------------------

    def share(self, round_: int, noise: float | None) -> Share:
        """The mechanism of a round. The grid is coarse, by powers of two: the noise covers the
        rounding (docs/veil.md, Theorem 4), and words are short."""
        size = len(self.terms) + 1 + (self.link.entries if round_ == 1 else 0)
        if noise is None:
            return Share(Grid(1.0, None, size, self._counted, FINE))
        rho = 1 / (2 * noise**2)
        if round_ == 1:
            rho *= self.gradients * self.link.share / (1 - self.link.share)
        own = 1 / math.sqrt(2 * rho * self._counted)
        step = 2.0 ** math.floor(math.log2(own / STEPS))
        return Share(Grid(1.0, rho, size, self._counted, step))

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """One noisy sum of vectors of norm 1: the first has `Link.share` of the budget, the others have
        the same."""
        return self.share(round_, noise).event

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The model, and what centres the terms."""
        if round_ == 1:
            return {}
        size = len(self.terms)
        fields = {
            "bias": Field("<f4", (1,), -STRONGEST, STRONGEST),
            "centre": Field("|i1", (size,), -127, 127),
            "scale": Field("<f4", (1,), *SCALES),
            **self.link.fields(),
        }
        if self.rounds > FEW:
            return {**fields, "theta": Field("<f4", (size,), -STRONGEST, STRONGEST)}
        unit = Field("<f4", (1,), 0.0, STRONGEST)
        return {**fields, "theta": Field("|i1", (size,), -127, 127), "unit": unit}

    def mechanism(self) -> str:
        """For the privacy statement."""
        words = (
            "In every round each hospital summed one vector of norm 1 per patient (first the "
            "patient's values and outcome, then gradients) on a grid of whole numbers, and added "
        )
        if self.local_noise:
            return words + "discrete Gaussian noise by itself. Proof: docs/additive.md, Theorem 1."
        return words + (
            "its share of discrete Gaussian noise. ASSUMPTION: the server sees only sums over the "
            f"{self.parties} hospitals (a secure sum), and at least "
            f"{self.honest_sites} of the hospitals add their share of the "
            "noise and keep it to themselves. A hospital's share alone does not protect its "
            "patients. Proof: docs/additive.md, Theorem 1."
        )

    # --- the site's side ---------------------------------------------------------------------------

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """The site's share of a sum, and beside the first how much noise it holds, which is
        public. The array's name says the grid and the length of its words."""
        share = self.share(session.round, session.noise)

        def each(data: Patients) -> Rows:
            return self._first(data) if session.round == 1 else self._gradient(data, message)

        words = session.release("sum", share, each)
        bits = self._bits(share.grid)
        exponent = round(math.log2(share.grid.steps))
        if bits <= 32:
            words = words.then(lambda found: pack_words(found, bits))
            name = f"e{exponent}w{bits}"
        else:
            name = f"e{exponent}w"
        payload = {name: words}
        if session.round == 1:
            variance = math.ceil(share.grid.deviation**2)
            payload["v"] = Sealed.public(np.array([variance], np.int64))
        return payload, own

    def _bits(self, grid: Grid) -> int:
        """Bits that hold any sum: twice the declared patients, and noise of 40 deviations."""
        most = 2 * (self.patients + self.parties) * grid.steps + 40 * grid.deviation * self.parties
        return max(8, math.ceil(math.log2(most)) + 1)

    def _values(self, data: Patients) -> NDArray[np.float32]:
        return _TERMS.get(data, lambda: self.terms.matrix(data.x), self.terms.digest)

    def _first(self, data: Patients) -> Rows:
        """(1, x, y) / norm of each row, a patient's rows with equal parts."""
        known = np.hstack([np.ones((data.rows, 1), np.float32), self._values(data)])
        norms = 1 / unit_weights(known, np.arange(data.rows + 1))
        rows = np.hstack([known, self.link.counted(data.y, norms)])
        return rows, unit_weights(rows, data.starts)

    def _gradient(self, data: Patients, message: Arrays) -> Rows:
        """P / norm(P) times the residual."""
        rows, weights = self._centred(data, message["centre"], float(message["scale"][0]))
        unit = float(message["unit"][0]) if self.rounds <= FEW else 1.0
        theta = np.append(message["bias"].astype(np.float64), unit * message["theta"])
        scores = statistics.logits(rows, theta, 0.0)
        return rows, weights * self.link.residual(scores, data.y, message)

    def _centred(
        self, data: Patients, centre: NDArray[np.int8], scale: float
    ) -> tuple[NDArray[np.float32], Floats]:
        """P of every row and 1 / norm(P), divided among the patient's rows; the last ones are kept,
        because centre and scale stay the same from the second round on."""
        label = f"{self.terms.digest} {scale} {centre.tobytes().hex()}"
        kept = _CENTRED.get(data, list)
        if kept and kept[0][0] == label:
            return kept[0][1], kept[0][2]
        rows, weights = centred(self._values(data), centre, scale, data.starts)
        kept[:] = [(label, rows, weights)]
        return rows, weights

    # --- the server's side -------------------------------------------------------------------------

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """No feature has a shape; nothing is random."""
        d = len(self.terms)
        return {
            "t": np.zeros(1, np.int32),
            "theta": np.zeros(d + 1),
            "velocity": np.zeros(d + 1),
            "mean": np.zeros(d + 1),
            "centre": np.zeros(d, np.int8),
            "scale": np.ones(1, np.float32),
            "rate": np.zeros(1),
            "noise": np.zeros(1),
            "kept": np.ones(d + 1, np.int8),
            "weights": np.zeros(d, np.float32),
            "bias": np.zeros(1, np.float32),
            # Of pictures the model is a network's head.
            **({} if isinstance(self.terms, Concepts) else {"params": np.zeros(d + 1, np.float32)}),
            **self.link.unknown(),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The model, and what centres the terms; nothing before the first release."""
        if not state["t"][0]:
            return {}
        theta = np.clip(state["theta"], -STRONGEST, STRONGEST)
        message = {key: state[key] for key in ("centre", "scale", *self.link.fields())}
        message["bias"] = theta[:1].astype(np.float32)
        if self.rounds > FEW:
            return {**message, "theta": theta[1:].astype(np.float32)}
        unit = float(np.abs(theta[1:]).max()) / 127 or 1.0
        code = np.rint(theta[1:] / unit).astype(np.int8)
        return {**message, "theta": code, "unit": np.array([unit], np.float32)}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The next model: post-processing of the sums and of public sizes."""
        new = {key: array.copy() for key, array in state.items()}
        new["t"] += 1
        people = sum(answer.patients for answer in answers)
        total, steps = _opened(answers, self.share(int(new["t"][0]), None).grid.size)
        if new["t"][0] == 1:
            variance = sum(float(answer.payload["v"][0]) for answer in answers) / steps**2
            self._start(new, total, people, math.sqrt(variance))
        else:
            self._step(new, total / people)
        average = new["t"][0] - 1 > self._half
        theta = new["mean"] if average else new["theta"]
        weights = theta[1:] / float(new["scale"][0])
        new["weights"] = weights.astype(np.float32)
        bias = BIAS * theta[0] - math.fsum(weights * as_centre(new["centre"]))
        new["bias"] = np.array([bias], np.float32)
        if "params" in new:
            new["params"] = np.append(new["weights"], new["bias"])
        return new

    @property
    def _half(self) -> int:
        """The gradients before the average begins."""
        return self.gradients // 2

    def _start(self, new: State, total: Floats, people: int, noise: float) -> None:
        """Centre, scale, rate of the outcome and the schedule from release 1 (docs/additive.md,
        section 2). What noise cannot have left possible is clipped to what is."""
        d = len(self.terms)
        square_of_outcomes, whole = self.link.rest()
        mass = float(np.clip(whole * total[0], people / math.sqrt(2 + d), people))
        score, rate, known = self.link.start(total[d + 1 :], mass, noise)
        new.update(known)
        means = whole * total[1 : d + 1] / mass
        code = np.rint(127 * np.clip(means, -1, 1)).astype(np.int8)
        square = (people / mass) ** 2
        spread = square - 1 - float(np.sum(means**2))
        spread -= square_of_outcomes * float(np.clip(total[-1] / mass, 1e-3, 1 - 1e-3))
        spread += d * (whole * noise / mass) ** 2
        scale = math.sqrt(max(spread, 0.05 * square))
        new["centre"], new["scale"] = code, np.array([scale], np.float32)
        new["theta"][0] = score / BIAS
        new["mean"][:] = 0
        # Release 1's noise tells a gradient's: their parts of the budget are fixed.
        level = noise * math.sqrt(self.gradients * self.link.share / (1 - self.link.share))
        new["noise"] = np.array([level])
        step = whole_step(rate, people, level, self.gradients, CAP)
        new["rate"] = np.array([(1 - self.momentum) * step])

    def _step(self, new: State, gradient: Floats) -> None:
        done = int(new["t"][0]) - 1 - self._half
        new["velocity"] = self.momentum * new["velocity"] + gradient
        new["theta"] = new["theta"] - new["rate"][0] * new["velocity"]
        if done == 0 and self.features:
            new["kept"] = self._strongest(new["theta"])
        # What is left out stays at 0, and the others make up for it in the second half.
        new["theta"], new["velocity"] = (new[key] * new["kept"] for key in ("theta", "velocity"))
        for direction in self.directions:
            direction.hold(new["theta"][1:])
        if done > 0:
            new["mean"] = new["mean"] + (new["theta"] - new["mean"]) / done

    def _strongest(self, theta: Floats) -> NDArray[np.int8]:
        """1 for the bias and for the terms of the features that the first half made strongest."""
        names = [concept.feature for concept in self.terms.items]
        strength: dict[str, float] = {}
        for name, value in zip(names, theta[1:], strict=True):
            strength[name] = strength.get(name, 0.0) + float(value) ** 2
        best = set(sorted(strength, key=lambda name: -strength[name])[: self.features])
        return np.array([1, *(name in best for name in names)], np.int8)

    # --- the model ---------------------------------------------------------------------------------

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk by the global model, for survival by the end of each interval: the same at every
        site."""
        small = len(x) * len(self.terms) <= _SMALL
        values = (
            _TESTED.get(x, lambda: self.terms.matrix(x), self.terms.digest)
            if small
            else self.terms.matrix(x)
        )
        scores = statistics.logits(values, state["weights"], float(state["bias"][0]))
        return self.link.predict(scores, state)

    def facts(self, state: State) -> dict[str, object]:
        """For the model card: how far noise can have moved a term's weight."""
        return {
            "secure_sum": not self.local_noise,
            "weight_noise": self.weight_noise(state),
        }

    def weight_noise(self, state: State) -> float:
        """The standard deviation that noise gives a weight, at most: what each gradient's noise
        moves the average of the second half by, where no curvature pulls it back."""
        ages = np.arange(self._half, self.gradients)[:, None] - np.arange(self.gradients) + 1
        # A gradient's noise moves an iterate that is ``age`` younger by this, times the rate.
        moved = np.where(ages > 0, 1 - self.momentum ** np.maximum(ages, 0), 0).mean(axis=0)
        level = float(state["rate"][0] * state["noise"][0]) / (self.patients * (1 - self.momentum))
        return float(level * math.sqrt(float(np.sum(moved**2))) / state["scale"][0])


def _opened(answers: Sequence[Answer], size: int) -> tuple[Floats, float]:
    """The sum in real units, and grid steps in a unit, as the arrays' common name says."""
    names = {name for answer in answers for name in answer.payload if name != "v"}
    if len(names) != 1:
        raise RunError(f"additive: expected one sum, found arrays {sorted(names)}")
    name = names.pop()
    exponent, _, bits = name.removeprefix("e").partition("w")
    parts = [
        unpack_words(words, int(bits)) if words.dtype == np.uint8 else words.astype(np.int64)
        for words in (np.asarray(answer.payload[name]) for answer in answers)
    ]
    total = np.sum(parts, axis=0)
    total = wrapped(total, int(bits)) if bits else total
    if total.shape != (size,):
        raise RunError(f"additive: expected {size} numbers, found shape {total.shape}")
    steps = 2.0 ** int(exponent)
    return total / steps, steps


class Shapes(Settings):
    """The additive model's own."""

    local_noise: bool = False
    features: int = Setting(default=0, ge=0)
    monotone: bool = False


def build(setup: Setup) -> Additive:
    """From a study."""
    own, public = Shapes.model_validate(setup.settings), setup.public
    link = link_of(public.outcome)
    if link is None:
        raise StudyError(
            f"method 'additive' tells two outcomes apart, found {public.outcome.count} classes; use "
            "another method (`suture methods` lists them)"
        )
    if public.scaling == "site":
        raise StudyError(
            "method 'additive' reads values on the scale of their bounds; leave out model.scaling "
            '= "site"'
        )
    setup.every_site("additive")
    known = terms_of(setup.network, public.schema, "method 'additive'")
    sizes = (setup.rounds, public.sites, public.patients, public.honest)
    held = directions(public.schema) if own.monotone and public.schema else ()
    return Additive(known, *sizes, own.local_noise, own.features, held, link)


def suits(public: Public) -> Fit:
    """Whatever a table's size, where two outcomes are told apart."""
    if (public.images and not public.featured) or link_of(public.outcome) is None:
        return Fit(0.0, "reads the columns of a table and tells two outcomes apart")
    if public.epsilon is None:
        return Fit(3.0, "calibrated, and readable as one curve per feature")
    if public.sites < 3:
        return Fit(
            4.0,
            "calibrated and readable; with fewer than three hospitals each adds all of the noise",
        )
    return Fit(4.0, "calibrated and readable, with one curator's noise for all hospitals together")


def schedule(public: Public) -> dict[str, Any]:
    """Rounds, and who adds the noise: docs/additive.md, section 4."""
    local = public.epsilon is not None and public.sites < 3
    return {"rounds": 1 + gradients_for(public, local), "local_noise": local}


def gradients_for(public: Public, local: bool) -> int:
    """So many gradients that none needs a larger step than an outcome of 15 % allows."""
    if public.epsilon is None:
        return MOST
    if public.patients >= 1 << 40:  # not declared
        return LEAST
    counted = public.sites / (1 if local else max(1, min(public.honest, public.sites)))
    mu = 1 / (float(get_sigma_gaussian(public.epsilon, public.delta)) * math.sqrt(counted))
    steps = REACH * public.patients * mu * USUAL / CAP
    return max(LEAST, min(MOST, math.ceil(steps)))


DECLARED = Declared(
    "additive",
    build,
    Shapes,
    cites=(
        Citation(
            "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure "
            "Aggregation",
            "Kairouz, Liu, Steinke",
            2021,
            "arXiv:2102.06387",
        ),
    ),
    uses=frozenset(),
    searches=(),
    clipped=False,
    suits=suits,
    schedule=schedule,
    model="concepts",
    concepts=terms,
    one_model=True,
    outcomes=(Classes, Survival),
)
