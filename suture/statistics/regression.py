"""Regression over all sites: logistic, linear or Poisson, with intervals and p-values that are valid
under the noise.

| here | meaning |
|---|---|
| x | 1 and the covariates, about a released mean and in released deviations; others are 0 or 1 |
| w(x) = min(1, (R / length of x)^2) | Mallows weights: a row of any length adds at most R |
| m, c | the mean by family, and the public scale of a residual r = clip((y - m) / c, -1, 1) |

Weights depend on x alone, so sum w x (y - m(x b)) = 0 has the true b as its root. With
`sites = "fixed"` every site but the first has an intercept of its own. With `sites = "random"` those
intercepts are estimated in the same way and then taken as draws from N(a, t^2): given their noisy
estimates b ~ N(Z (a, beta) + S u, V), t^2 is found by restricted maximum likelihood and (a, beta) by
generalised least squares under V + t^2 S S^T (the two stages of a meta-analysis of individual patients:
Burke, Ensor & Riley 2017). It costs nothing more.

`exact` is for tests against other libraries: no weights, no clipping, Newton's steps with the curvature
of every round. A site refuses it where noise is promised.

Rounds: (1) sums of the covariates, for the centre, and of w x x^T, for the first curvature; (2 to T)
gradients g = sum w x r; (T + 1) at the last b, the gradient and the curvature H = sum w v(x b) x x^T,
v = m' / c <= its bound. A patient adds at most R to a gradient, R^2 v_max to a curvature (Frobenius
norm: off-diagonal entries are sent once, times the root of 2) and what the table of `asks` says to the
rest; rows of one patient are averaged.

**Estimate.** One step from the mean of the last b's with the mean of their gradients: b' = b + H^-1 g
(g is linear in b up to second order, so noise is averaged). **Variance.** With the noise s_g of the
gradient, s_H of the curvature, and step v = H^-1 g,

    Var b' = H^-1 ( B + s_g^2 I + s_H^2 / 2 (|v|^2 I + v v^T) ) H^-1

(the first-order expansion of the one-step estimate: Bickel 1975; B = sum w^2 x x^T Var(r), under the
model at most H / c, which is what is used; the last term is the covariance of a symmetric Gaussian
matrix times v). Where H less three deviations of its noise is not positive definite, everything is
withheld: eigenvalues are never raised to make it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting
from scipy.optimize import minimize_scalar
from scipy.special import expit, ndtr

from suture.errors import StudyError
from suture.methods.base import Answer, Arrays, State
from suture.methods.declared import Declared, Settings, Setup
from suture.privacy.door import Payload, Rows, Session
from suture.privacy.unit import Patients
from suture.report.theme import GREY, PALETTE, Figure, finish, table, tips
from suture.report.words import Cell, Table, p_value
from suture.schema.message import Field
from suture.schema.table import Number
from suture.statistics.base import Floats, Statistic, Sum, per_patient
from suture.statistics.survival import column_values, place_of
from suture.statistics.table_one import SPREAD, Z95, Place, cells_of, labels_of, places

STEPS, FIRST = 4, 2
"""Steps along gradients, and how many of them come before those that the estimate uses."""
SHARES = {
    "centre": 0.03,
    "gram": 0.10,
    "early": 0.10,
    "gradient": 0.50,
    "curvature": 0.25,
    "weights": 0.02,
}
"""Of the cost: early gradients together, the later ones together."""
POWER = 0.5
"""A covariate is divided by this power of its released deviation: noise is the same in every entry
of a gradient, so rare flags must be longer; fully standardised, their rows would be cut."""
FARTHEST = 30.0
"""No coefficient is sent that is farther from 0."""
Family = Literal["logistic", "linear", "poisson"]


class Link(NamedTuple):
    """A family: the mean and its slope by the linear predictor, and the largest slope."""

    mean: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    steepest: float


def _squared(eta: Floats) -> Floats:
    p = expit(eta)
    return np.asarray(p * (1 - p))


LINKS: dict[Family, Link] = {
    "logistic": Link(expit, _squared, 0.25),
    "linear": Link(lambda eta: eta, np.ones_like, 1.0),
    "poisson": Link(
        lambda eta: np.exp(np.minimum(eta, FARTHEST)),
        lambda eta: np.exp(np.minimum(eta, FARTHEST)),
        1.0,
    ),
}


@dataclass(frozen=True)
class Regression(Statistic):
    """The outcome (or the number ``of``) on the columns ``on``."""

    family: Family = "logistic"
    on: tuple[str, ...] = ()
    of: str = ""
    offset: str = ""
    sites: Literal["none", "fixed", "random"] = "none"
    exact: bool = False
    name: str = "associate"
    label: str = "a regression"

    @cached_property
    def covariates(self) -> tuple[Place, ...]:
        """The columns, in order."""
        if self.public.schema is None or not self.public.outcome.two:
            raise StudyError("associate needs a [schema] and an outcome of two classes")
        known = {place.name: place for place in places(self.public.schema)}
        left = {self.of, self.offset}
        chosen = self.on or tuple(name for name in known if name not in left)
        for name in chosen:
            if name not in known:
                raise StudyError(
                    f"on: {name!r} is not a declared column; expected some of {', '.join(known)}"
                )
        return tuple(known[name] for name in chosen)

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """The names of the coefficients; of a category the first value is the reference."""
        found = ["(intercept)"]
        for place in self.covariates:
            if isinstance(place.feature, Number):
                found.append(place.name)
            else:
                found += [f"{place.name}: {value}" for value in labels_of(place.feature)[1:]]
        if self.sites != "none":
            found += [f"site: {site}" for site in list(self.public.sizes)[1:]]
        return tuple(found)

    @cached_property
    def _outcome(self) -> Place | None:
        """The number that is explained; None: the study's outcome."""
        if self.of:
            return place_of(self, self.of, numbers=True)
        if self.family != "logistic":
            raise StudyError(f"{self.family}: name the number that is explained, such as --of days")
        return None

    @cached_property
    def scale(self) -> float:
        """c: what a residual is divided by before it is clipped."""
        if self._outcome is None:
            return 1.0
        feature = self._outcome.feature
        if not isinstance(feature, Number):
            return 1.0
        return (
            feature.high - feature.low
            if self.family == "poisson"
            else (feature.high - feature.low) / 2
        )

    @property
    def radius(self) -> float:
        """R: the root of the number of terms, which is about a row's length; longer ones weigh
        less."""
        return math.sqrt(len(self.terms))

    @property
    def unit(self) -> float:
        """c on the scale of the model: what a residual is divided by before it is clipped to 1. A
        linear residual beyond half the bounds' half width, two public deviations, counts as that."""
        return {"logistic": 1.0, "linear": 2 * SPREAD, "poisson": self.scale}[self.family]

    @property
    def rounds(self) -> int:
        """How many rounds it takes."""
        return self.steps + 2

    @property
    def steps(self) -> int:
        """Steps along gradients."""
        return 10 if self.exact else STEPS

    def asks(self, round_: int) -> tuple[Sum, ...]:
        """The sums of a round, with what a patient adds at most; exact ones on a finer grid."""
        asked = self._asks(round_)
        return tuple(replace(a, limit=a.limit / 2**20) for a in asked) if self.exact else asked

    def _asks(self, round_: int) -> tuple[Sum, ...]:
        d = len(self.terms)
        square = d * (d + 1) // 2
        steepest = LINKS[self.family].steepest / (self.unit if self.family == "linear" else 1.0)
        late = round_ > FIRST + 1
        each = SHARES["gradient"] / (self.steps + 1 - FIRST) if late else SHARES["early"] / FIRST
        gradient = Sum("gradient", d, self.radius, each)
        if round_ == 1:
            return (
                Sum("centre", d, math.sqrt(d), SHARES["centre"]),
                Sum("gram", square, self.radius**2, SHARES["gram"]),
            )
        curvature = Sum("curvature", square, self.radius**2 * steepest, SHARES["curvature"])
        if round_ <= self.steps + 1:
            return (gradient, curvature) if self.exact else (gradient,)
        return (
            gradient,
            curvature,
            Sum("weights", 3, math.sqrt(3), SHARES["weights"]),
        )

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """From round 2 on the centre, the lengths and the coefficients."""
        if round_ == 1:
            return {}
        size = (len(self.terms),)
        return {
            "centre": Field("<f8", size, -1e3, 1e3),
            "length": Field("<f8", size, 0.05, 20.0),
            "b": Field("<f8", size, -FARTHEST, FARTHEST),
        }

    def broadcast(self, state: State, site: str) -> Arrays:
        """The centre, the lengths and the coefficients."""
        return {key: state[key] for key in ("centre", "length", "b")} if int(state["round"]) else {}

    def design(self, data: Patients, site: str) -> tuple[Floats, NDArray[np.bool_]]:
        """The rows x, not yet centred, and which are complete."""
        x = np.zeros((data.rows, len(self.terms)))
        x[:, 0] = 1.0
        used = np.ones(data.rows, bool)
        at = 1
        for place in self.covariates:
            if isinstance(place.feature, Number):
                value, known = column_values(place, data)
                feature = place.feature
                middle, half = (feature.high + feature.low) / 2, (feature.high - feature.low) / 2
                x[:, at] = (value - middle) / (SPREAD * half)
                used &= known
                at += 1
            else:
                cell, count = cells_of(place, data.x), len(labels_of(place.feature))
                for i in range(1, count):
                    x[:, at + i - 1] = cell == i
                used &= cell < count
                at += count - 1
        if self.sites != "none":
            x[:, at:] = np.array(list(self.public.sizes)[1:]) == site
        return x, used

    def response(self, data: Patients) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """What is explained on the scale of the model, the offset, and where both are known."""
        offset, known = np.zeros(data.rows), np.ones(data.rows, bool)
        if self.offset:
            place = place_of(self, self.offset, numbers=True)
            exposure, known = column_values(place, data)
            offset = np.log(np.maximum(exposure, 1e-9))
            known = known & (exposure > 0)
        if self._outcome is None:
            return data.y.astype(np.float64), offset, known
        y, there = column_values(self._outcome, data)
        if self.family == "linear" and isinstance(self._outcome.feature, Number):
            middle = (self._outcome.feature.high + self._outcome.feature.low) / 2
            y = (y - middle) / self.scale
        return y, offset, known & there

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """As every statistic; never exact where there is a promise."""
        if self.exact and session.noise is not None:
            raise StudyError("associate: exact = true needs a study without a promise")
        return super().site_step(session, own, message)

    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """What rows add to a sum."""
        x, used = self.design(data, site)
        y, offset, known = self.response(data)
        weight = per_patient(data) * (used & known)
        if ask.name == "centre":
            bounded = np.clip(x, -1 / SPREAD, 1 / SPREAD) * np.where(
                np.arange(x.shape[1]) > 0, SPREAD, 1
            )
            return np.clip(bounded, -1, 1), weight
        if "centre" in message:
            x = (x - np.asarray(message["centre"])) * np.asarray(message["length"])
            x[:, 0] = 1.0
        mallows = np.minimum(1.0, self.radius**2 / np.maximum((x * x).sum(axis=1), 1e-12))
        if self.exact:
            mallows = np.ones(data.rows)
        if ask.name == "gram":
            return triangle(x), weight * mallows
        link = LINKS[self.family]
        eta = x @ np.asarray(message["b"]) + offset
        r = (y - link.mean(eta)) / self.unit
        r = r if self.exact else np.clip(r, -1, 1)
        if ask.name == "gradient":
            return x, weight * mallows * r
        if ask.name == "weights":
            return np.stack([r * r, mallows**2, mallows], axis=1), weight
        most = next(one.limit for one in self.asks(self.rounds) if one.name == "curvature")
        slope = link.slope(eta) / self.unit
        slope = slope if self.exact else np.minimum(slope, most / self.radius**2)
        return triangle(x), weight * mallows * slope

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The centre, a step along the gradient, or the sums of the last round."""
        new = super().server_step(state, answers)
        round_ = int(new["round"])
        d = len(self.terms)
        if round_ == 1:
            people = max(float(new["centre"][0]), 1.0)
            mean = np.where(np.arange(d) > 0, new["centre"] / people / SPREAD, 0.0)
            new["people"], new["centre"] = np.asarray(people), np.clip(mean, -1e3, 1e3)
            about = self._about(symmetric(new["gram"], d), new["centre"])
            spread = np.sqrt(np.clip(np.diag(about) / max(float(about[0, 0]), 1.0), 0.02, 4.0))
            new["length"] = np.where(np.arange(d) > 0, spread**-POWER, 1.0)
            new["gram"] = about * np.outer(new["length"], new["length"])
            new["b"], new["mean_b"], new["mean_g"] = (np.zeros(d) for _ in range(3))
            return new
        if round_ > FIRST + 1:
            late = self.steps + 1 - FIRST
            new["mean_b"] = new["mean_b"] + new["b"] / late
            new["mean_g"] = new["mean_g"] + new["gradient"] / late
        if round_ <= self.steps + 1:
            new["b"] = np.clip(new["b"] + self._step(new), -FARTHEST, FARTHEST)
        return new

    def _about(self, gram: Floats, centre: Floats) -> Floats:
        """The Gram matrix about the centre."""
        moved = np.eye(len(centre))
        moved[:, 0] -= centre
        moved[0, 0] = 1.0
        return np.asarray(moved @ gram @ moved.T)

    def _step(self, state: State) -> Floats:
        """A damped Newton step with the first round's curvature, ridged by its noise."""
        curve = self._first_curvature(state)
        if self.exact:
            curve = symmetric(np.asarray(state["curvature"]), len(self.terms))
        step = np.linalg.solve(curve, state["gradient"])
        return np.asarray(step / max(1.0, float(np.abs(step).max()) / 2))

    def _first_curvature(self, state: State) -> Floats:
        """The Gram matrix about the centre, times a typical slope."""
        about, d = np.asarray(state["gram"]), len(self.terms)
        noise = self.noise_of(self.asks(1)[1]) * float(np.max(state["length"])) ** 2
        ridge = (2 * noise * math.sqrt(d) + 0.01 * max(float(about[0, 0]), 1.0)) * np.eye(d)
        typical = 0.6 if self.family == "logistic" else 1.0
        return np.asarray(typical * LINKS[self.family].steepest / self.unit * (about + ridge))

    def figures(self, state: State) -> dict[str, object]:
        """Coefficients with intervals and p-values; per unit of a number as declared."""
        gradient, curvature, _ = self.asks(self.rounds)
        d = len(self.terms)
        h = symmetric(np.asarray(state["curvature"]), d)
        s_h = self.noise_of(curvature)
        s_g = self.noise_of(gradient) / math.sqrt(self.steps + 1 - FIRST)
        found: dict[str, object] = {"family": self.family, "terms": {}, "withheld": False}
        if np.linalg.eigvalsh(h)[0] <= 3 * s_h:
            return {**found, "withheld": True}
        last = "" if self.exact else "mean_"
        v = np.linalg.solve(h, np.asarray(state["gradient" if self.exact else "mean_g"]))
        inner = self._meat(h, np.asarray(state["weights"]), float(state["people"]))
        inner = inner + s_g**2 * np.eye(d) + s_h**2 / 2 * (v @ v * np.eye(d) + np.outer(v, v))
        inverse = np.linalg.inv(h)
        # From centred covariates of other lengths back to the columns' own.
        change = np.diag(np.asarray(state["length"]))
        change[0, 1:] = -np.asarray(state["centre"])[1:] * np.asarray(state["length"])[1:]
        spread = change @ inverse @ inner @ inverse @ change.T
        b = change @ (np.asarray(state[f"{last}b"]) + v)
        if self.sites == "random":
            b, spread, apart = random_sites(b, spread, len(self.public.sizes))
            found["site_deviation"] = apart * (self.scale if self.family == "linear" else 1.0)
        return {**found, "terms": self._rows(b, np.sqrt(np.diag(spread)))}

    def _meat(self, h: Floats, weights: Floats, people: float) -> Floats:
        """The covariance of the gradient by sampling, under the model: H with w^2 in the place of w,
        on average."""
        squares, second, first = weights.tolist()
        ratio = min(1.0, max(0.05, second / max(first, 1.0)))
        if self.family == "linear":
            free = max(people - len(self.terms), 1.0)
            return np.asarray(h * ratio * self.unit * max(squares / free, 1e-6))
        return np.asarray(h * ratio / self.unit)

    def _rows(self, b: Floats, error: Floats) -> dict[str, dict[str, object]]:
        units = {place.name: place.feature for place in self.covariates}
        size = self.scale if self.family == "linear" else 1.0
        rows: dict[str, dict[str, object]] = {}
        for term, value, sd in zip(self.terms[: len(b)], b.tolist(), error.tolist(), strict=True):
            feature = units.get(term)
            per = 1.0
            if isinstance(feature, Number):
                per = SPREAD * (feature.high - feature.low) / 2
            value, sd = value * size / per, sd * size / per
            z = value / sd
            row: dict[str, object] = {
                "coefficient": value,
                "error": sd,
                "interval": [value - Z95 * sd, value + Z95 * sd],
                "p": float(2 * ndtr(-abs(z))),
            }
            if self.family != "linear" and abs(value) + Z95 * sd < 300:
                row["ratio"] = math.exp(value)
                row["ratio_interval"] = [math.exp(value - Z95 * sd), math.exp(value + Z95 * sd)]
            rows[term] = row
        return rows


def random_sites(b: Floats, spread: Floats, sites: int) -> tuple[Floats, Floats, float]:
    """The mean intercept and the coefficients with their covariance, and the deviation of the sites'
    intercepts, from the estimates of a regression with an intercept for every site but the first."""
    d, rest = len(b), len(b) - (sites - 1)
    z = np.eye(d)[:, :rest]
    s = np.zeros((d, sites))
    s[0, 0], s[rest:, 0], s[rest:, 1:] = 1.0, -1.0, np.eye(sites - 1)

    def fit(variance: float) -> tuple[float, Floats, Floats]:
        whole = spread + variance * s @ s.T
        inverse = np.linalg.inv(whole)
        inner = np.linalg.inv(z.T @ inverse @ z)
        mean = inner @ z.T @ inverse @ b
        left = b - z @ mean
        sizes = np.linalg.slogdet(whole)[1] - np.linalg.slogdet(inner)[1]
        return float(sizes + left @ inverse @ left), mean, np.asarray(inner, np.float64)

    top = 10.0 * float(np.var(b[rest:]) + b[rest:] @ b[rest:] / max(1, sites - 1)) + 1e-6
    best = minimize_scalar(lambda v: fit(v)[0], bounds=(0.0, top), method="bounded",
                           options={"xatol": 1e-10})  # fmt: skip
    variance = float(best.x) if best.fun < fit(0.0)[0] else 0.0
    _, mean, inner = fit(variance)
    return mean, inner, math.sqrt(variance)


def triangle(x: Floats) -> Floats:
    """x x^T of each row: the diagonal, and what is above it times the root of 2, so that the norm is
    Frobenius'."""
    i, j = np.triu_indices(x.shape[1])
    return np.asarray(x[:, i] * x[:, j] * np.where(i == j, 1.0, math.sqrt(2)))


def symmetric(flat: Floats, d: int) -> Floats:
    """The matrix of a triangle.

    >>> symmetric(triangle(np.array([[1.0, 2.0]]))[0], 2).round(9).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    i, j = np.triu_indices(d)
    out = np.zeros((d, d))
    out[i, j] = flat / np.where(i == j, 1.0, math.sqrt(2))
    return out + np.triu(out, 1).T


class Associated(Settings):
    """What `suture associate` may be asked."""

    family: Family = "logistic"
    on: tuple[str, ...] = ()
    of: str = ""
    offset: str = ""
    sites: Literal["none", "fixed", "random"] = "none"
    exact: bool = False
    honest: float = Setting(default=0.5, gt=0, le=1)


def build(setup: Setup) -> Regression:
    """From a study."""
    own: Any = Associated.model_validate(setup.settings)
    setup.every_site("associate")
    return Regression(setup.public, **own.model_dump())


DECLARED = Declared("associate", build, Associated, uses=frozenset(), searches=(), model="none")


RATIOS = {"logistic": "Odds ratio", "poisson": "Rate ratio", "linear": "Coefficient"}


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Coefficients or ratios with intervals and p-values."""
    name = RATIOS[found["family"]]
    rows = []
    for term, row in found["terms"].items():
        key = "ratio" if "ratio" in row else "coefficient"
        ends = row["ratio_interval"] if key == "ratio" else row["interval"]
        cell = Cell(significant(row[key]), f"{significant(ends[0])} to {significant(ends[1])}")
        rows.append(
            (Cell(term), cell, Cell(significant(row["coefficient"])), Cell(p_value(row["p"])))
        )
    remark = "Small: 95 % intervals; they and the p-values count the noise."
    if "site_deviation" in found:
        apart = significant(found["site_deviation"])
        remark += f" Sites' intercepts are random, with a standard deviation of {apart}."
    if found["withheld"]:
        remark = (
            "Withheld: the noise is too large for these covariates and patients. Ask about fewer "
            "covariates, or spend more."
        )
    heads = ("", name, "Coefficient", "p")
    return [Table("A regression over all sites", heads, tuple(rows), remark)]


def significant(value: float) -> str:
    """Three significant figures, without an exponent where that is shorter."""
    return f"{value:.3g}"


def forest(found: Mapping[str, Any]) -> Figure:
    """The coefficients with their intervals; ratios on a log scale."""
    rows, ratio = [], found["family"] != "linear"
    for term, row in found["terms"].items():
        if term == "(intercept)" or (ratio and "ratio" not in row):
            continue
        low, high = row["ratio_interval"] if ratio else row["interval"]
        value = row["ratio"] if ratio else row["coefficient"]
        rows.append({"term": term, "value": value, "low": low, "high": high, "p": row["p"]})
    scale = alt.Scale(type="log") if ratio else alt.Scale(zero=True)
    base = alt.Chart(table(rows)).encode(y=alt.Y("term:N", sort=None, title=None))
    x = alt.X("low:Q", title=RATIOS[found["family"]], scale=scale)
    dots = base.mark_point(filled=True, size=70, color=PALETTE[0]).encode(
        x=alt.X("value:Q", scale=scale), tooltip=tips(term="Term", value="Value|.3g", p="p|.3g")
    )
    rules = base.mark_rule(color=PALETTE[0]).encode(x=x, x2="high:Q")
    one = alt.Chart(table([{"at": 1.0 if ratio else 0.0}])).mark_rule(strokeDash=[4, 4], color=GREY)
    drawn = (one.encode(x=alt.X("at:Q", scale=scale)) + rules + dots).properties(width=460)
    return finish(drawn, RATIOS[found["family"]], "95 % intervals that count the noise")
