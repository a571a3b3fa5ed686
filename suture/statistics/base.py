"""A statistic is a method without a model: rounds of noisy sums over all patients of all sites, and
figures that the server computes from them.

It runs on the engines that train models: charged at each site before anything leaves, planned before
rows are read, under masks or not, in one process or over a network. A statistic says which sums it
asks for (`Sum`), what a row adds to one (`adds`), and what the opened sums mean (`figures`).

Cost: with the noise multiplier z, a sum with share s of the budget costs as much as a Gaussian release
of multiplier z / sqrt(s) (docs/veil.md, Theorems 4 and 5). Shares add up to 1 over all rounds, and
Gaussian releases compose by the squares of mu = sqrt(s) / z (Dong, Roth & Su 2022, Corollary 3.3), so
the whole statistic costs one Gaussian release of multiplier z. What a patient adds to a sum is clipped
to its limit by the door, rows and all.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError
from suture.methods.base import Answer, Arrays, Method, Needs, State
from suture.methods.declared import Public
from suture.privacy.door import Payload, Rows, Session
from suture.privacy.unit import Patients
from suture.protection.secure_sum import Grid, Share, gaussian_cost
from suture.schema.message import Field

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sum:
    """One noisy sum: how many numbers, the most that a patient adds (L2 norm), its share of the
    cost."""

    name: str
    size: int
    limit: float
    share: float


@dataclass(frozen=True)
class Statistic(Method):
    """What every statistic shares. ``honest`` is the share of sites whose noise is counted on."""

    public: Public
    honest: float = 0.5
    noise: float | None = None
    """The noise multiplier that was planned; the server's figures need it."""
    needs: Needs = "secure sum"
    phased: bool = True
    by_size: bool = False
    predicts: bool = False

    @abstractmethod
    def asks(self, round_: int) -> tuple[Sum, ...]:
        """The sums of a round."""

    @abstractmethod
    def adds(self, ask: Sum, data: Patients, site: str, message: Arrays) -> Rows:
        """What rows add to a sum: a vector and a weight for each row."""

    @abstractmethod
    def figures(self, state: State) -> dict[str, object]:
        """What the opened sums say, as plain values."""

    def planned(self, noise: float | None) -> Self:
        """With the noise that was planned."""
        return replace(self, noise=noise)

    def noise_of(self, ask: Sum) -> float:
        """The standard deviation of the noise in a sum, when every site has added its own."""
        grid = self._grid(ask, self.noise)
        return grid.deviation * math.sqrt(self.public.sites) / grid.steps

    @property
    def honest_sites(self) -> int:
        """A sum of fewer sites than this must not be opened: its noise would be less than
        promised."""
        return max(1, math.ceil(self.honest * self.public.sites))

    def _grid(self, ask: Sum, noise: float | None) -> Grid:
        rho = None if noise is None else ask.share / (2 * noise**2)
        return Grid(ask.limit, rho, ask.size, self.honest_sites)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """Nothing: what is asked follows from the round."""
        return {}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """The sums of the round together."""
        share = math.fsum(ask.share for ask in self.asks(round_))
        return gaussian_cost(None if noise is None else share / (2 * noise**2))

    def mechanism(self) -> str:
        """For the privacy statement."""
        sums = sum(ask.size for ask in self.asks(1))
        return (
            f"Each hospital added up what its patients contribute to {self.label} ({sums:,} numbers "
            "in the first round; what a patient adds is bounded, and clipped to the bound), on a "
            "grid of whole numbers, and added its share of discrete Gaussian noise. ASSUMPTION: the "
            f"server sees only sums over the {self.public.sites} hospitals (docs/secure-sums.md), "
            f"and at least {self.honest_sites} of them add their share of the noise and keep it to "
            "themselves. A hospital's share alone does not protect its patients."
        )

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """Nothing is known yet."""
        return {"round": np.zeros((), np.int64)}

    def broadcast(self, state: State, site: str) -> Arrays:
        """Nothing."""
        return {}

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """The site's share of every sum of the round."""
        found = {}
        for ask in self.asks(session.round):
            share = Share(self._grid(ask, session.noise), unbounded=session.noise is None)

            def each(data: Patients, ask: Sum = ask) -> Rows:
                return self.adds(ask, data, session.site, message)

            found[ask.name] = session.release(ask.name, share, each)
        return found, own

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The sums, opened."""
        round_ = int(state["round"]) + 1
        opened = {}
        for ask in self.asks(round_):
            words = np.sum([answer.payload[ask.name] for answer in answers], axis=0, dtype=np.int64)
            if words.shape != (ask.size,):
                raise RunError(f"{self.name}: expected {ask.size} numbers in {ask.name!r}")
            opened[ask.name] = self._grid(ask, None).open(words)
        return {**state, **opened, "round": np.asarray(round_, np.int64)}

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """A statistic predicts nothing (`predicts`)."""
        raise RunError(f"{self.name} is a statistic: it predicts nothing")

    def facts(self, state: State) -> dict[str, object]:
        """The figures."""
        return self.figures(state)


def per_patient(data: Patients) -> NDArray[np.float64]:
    """A weight for each row: a patient's k rows weigh 1 / k each, so the door sums their mean.

    >>> per_patient(Patients(np.zeros((3, 1)), np.zeros(3), np.array([0, 1, 3]))).tolist()
    [1.0, 0.5, 0.5]
    """
    rows = np.diff(data.starts)
    return np.repeat(1.0 / rows, rows)


def any_of(data: Patients, values: NDArray[Any]) -> NDArray[Any]:
    """For each row, whether any row of its patient has the value."""
    if not len(values):
        return values
    return np.repeat(np.maximum.reduceat(values, data.starts[:-1]), np.diff(data.starts))
