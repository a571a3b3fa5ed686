"""What a method is: pure functions over explicit state. Each method is one paper in one file beside
this one.

State, messages and answers are named arrays, so that a checkpoint, an envelope and a test can hold
them as they are. A method never sees a ledger, a file, a socket or a row: the site charges
`round_event`, and then gives `site_step` a `Session`, to which the method hands mechanisms and
functions that say what each patient adds (`suture/privacy/door.py`).

`Method` states everything that a run asks of a method, with the defaults that hold for most of
them. A method around another one is a `Wrapper`, which passes all of it on
(tests/contracts/test_methods.py: no question can be forgotten).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.models.network import Network
from suture.privacy.door import Payload, Sealed, Session
from suture.schema.message import Field
from suture.training import local as training
from suture.training.local import Local
from suture.training.mechanism import DpSgd

Arrays = Mapping[str, NDArray[Any]]
State = dict[str, NDArray[Any]]
Weights = NDArray[np.float32]
Needs = Literal["sum", "each", "secure sum"]
Weighting = Literal["size", "uniform"]


@dataclass(frozen=True)
class Answer:
    """What one site sent back in a round, or the sum of ``sites`` of them. ``patients``: their
    public number in training."""

    site: str
    patients: int
    payload: Arrays
    sites: int = 1


class Doubt(NamedTuple):
    """Why a method may not work in a federation, in words for whoever decides."""

    level: Literal["look", "stop"]
    text: str


class Method(ABC):
    """The interface of every method (conformance suite: tests/contracts/test_methods.py)."""

    # --- what it is called, and what a run must arrange for it ---

    @property
    @abstractmethod
    def name(self) -> str:
        """As written in a study file."""

    @property
    @abstractmethod
    def label(self) -> str:
        """As written in a table or figure."""

    @property
    def needs(self) -> Needs:
        """Whether the server needs each answer, or only their weighted sum (then a secure sum
        serves). "secure sum" says more: the promise holds only when the server sees nothing but the
        sum, so it is given no more."""
        return "sum"

    @property
    def weighting(self) -> Weighting:
        """What a site counts for in a mean: its declared size, or the same as every other."""
        return "size"

    @property
    def reference(self) -> bool:
        """True for a reference in which nothing is put together, so that nothing is masked or made
        robust."""
        return False

    @property
    def pooled(self) -> bool:
        """True only for the reference that moves all rows to one place."""
        return False

    @property
    def predicts(self) -> bool:
        """Whether it ends in a model that predicts; a statistic does not."""
        return True

    @property
    def tests(self) -> bool:
        """Whether it works on the patients that are held out from training, as an evaluation
        does."""
        return False

    def planned(self, noise: float | None) -> Method:
        """The method, told the noise multiplier that was planned at every site, for a server whose
        figures need it; None: no noise."""
        return self

    def sums(self, round_: int, sites: Sequence[str]) -> Sequence[tuple[str, ...]] | None:
        """The sites of each secure sum of a round, where they are asked for different ones: a site
        in none of them sends nothing. None: one sum of all."""
        return None

    # --- the promise: known from public facts, before rows are touched ---

    @abstractmethod
    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """What the message of a round to a site holds: the type, shape and range of every array.
        Nothing else is read."""

    @abstractmethod
    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """What a site's step in round 1, 2, ... costs."""

    @property
    def phased(self) -> bool:
        """Whether rounds differ in what they cost. Otherwise each is one local training."""
        return False

    @property
    def by_size(self) -> bool:
        """Whether a round's cost depends on how many patients a site has."""
        return True

    @property
    def honest_sites(self) -> int:
        """Of how many sites in a sum the promise counts the noise; 0 where every answer carries all
        of its own."""
        return 0

    def honest_of(self, group: Sequence[str]) -> int:
        """The same for one of several sums: with fewer it must not be opened."""
        return self.honest_sites

    def mechanism(self) -> str | None:
        """In words for a privacy officer: what leaves, how it is protected, on which assumptions.
        None: updates by DP-SGD, which the statement describes itself."""
        return None

    def foresees(
        self, noise: Mapping[str, float], sizes: Mapping[str, int], rounds: int
    ) -> tuple[Doubt, ...]:
        """Whether it can work with these declared sizes and the noise that the plan gives each
        site; asked before anything is paid for, and only under a promise."""
        return ()

    @property
    def penalty(self) -> float:
        """Lambda of a penalty on gaps between groups; 0 where the method knows no groups."""
        return 0.0

    # --- a round ---

    def at_round(self, round_: int, rounds: int) -> Method:
        """The method as it stands in a round: a learning rate may decay, by a public schedule."""
        return self

    @abstractmethod
    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The server's state before the first round."""

    @abstractmethod
    def broadcast(self, state: State, site: str) -> Arrays:
        """What a site is sent."""

    @abstractmethod
    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Train at the site: what leaves, which only the door can make, and the site's new own
        state (which stays)."""

    @abstractmethod
    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The server's new state."""

    # --- the model ---

    @abstractmethod
    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk for encoded rows, as this site would compute it: each row's is a function of that
        row alone, to the last bit."""

    def parts(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> dict[str, NDArray[np.float32]]:
        """Where several models predict together: the risk by each of them, by name."""
        return {}

    def facts(self, state: State) -> dict[str, object]:
        """What else the method has to say about its model, as plain values for the result."""
        return {}

    def noted(self, before: State, after: State) -> dict[str, object]:
        """What a round adds to the history beside metrics: made from releases alone."""
        return {}


@dataclass(frozen=True)
class Wrapper(Method):
    """A method around another: whatever it does not answer itself, the inner method answers."""

    inner: Method

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def weighting(self) -> Weighting:
        return self.inner.weighting

    @property
    def reference(self) -> bool:
        return self.inner.reference

    @property
    def pooled(self) -> bool:
        return self.inner.pooled

    @property
    def predicts(self) -> bool:
        return self.inner.predicts

    @property
    def tests(self) -> bool:
        return self.inner.tests

    def planned(self, noise: float | None) -> Self:
        return replace(self, inner=self.inner.planned(noise))

    def sums(self, round_: int, sites: Sequence[str]) -> Sequence[tuple[str, ...]] | None:
        return self.inner.sums(round_, sites)

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        return self.inner.expects(round_, site)

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        return self.inner.round_event(round_, site, size, noise)

    @property
    def phased(self) -> bool:
        return self.inner.phased

    @property
    def by_size(self) -> bool:
        return self.inner.by_size

    @property
    def honest_sites(self) -> int:
        return self.inner.honest_sites

    def honest_of(self, group: Sequence[str]) -> int:
        return self.inner.honest_of(group)

    def mechanism(self) -> str | None:
        return self.inner.mechanism()

    def foresees(
        self, noise: Mapping[str, float], sizes: Mapping[str, int], rounds: int
    ) -> tuple[Doubt, ...]:
        return self.inner.foresees(noise, sizes, rounds)

    @property
    def penalty(self) -> float:
        return self.inner.penalty

    def at_round(self, round_: int, rounds: int) -> Self:
        return replace(self, inner=self.inner.at_round(round_, rounds))

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        return self.inner.init(sites, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        return self.inner.broadcast(state, site)

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        return self.inner.site_step(session, own, message)

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        return self.inner.server_step(state, answers)

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        return self.inner.predict(state, own, x, site)

    def parts(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> dict[str, NDArray[np.float32]]:
        return self.inner.parts(state, own, x, site)

    def facts(self, state: State) -> dict[str, object]:
        return self.inner.facts(state)

    def noted(self, before: State, after: State) -> dict[str, object]:
        return self.inner.noted(before, after)


@dataclass(frozen=True)
class Trained(Method):
    """What methods share whose sites train a network by DP-SGD from a global one and send the
    change: FedAvg's skeleton. A paper's file says what it does otherwise."""

    network: Network
    local: Local

    def at_round(self, round_: int, rounds: int) -> Self:
        local = training.at_round(self.local, round_, rounds)
        return self if local is self.local else replace(self, local=local)

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        return start_weights(self.network, rng)

    def broadcast(self, state: State, site: str) -> Arrays:
        return {"params": state["params"]}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        return {"params": weights_field(self.network)}

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        return local_event(self.local, size, noise)

    def foresees(
        self, noise: Mapping[str, float], sizes: Mapping[str, int], rounds: int
    ) -> tuple[Doubt, ...]:
        """Clipped gradients all in one direction move the model by at most one clip a step; noise
        moves it at random, by the root of the steps."""
        whole, signal, variance = sum(sizes[site] for site in noise), 0.0, 0.0
        for site, level in noise.items():
            weight, steps = sizes[site] / whole, rounds * training.steps(sizes[site], self.local)
            signal += weight * steps
            each = weight * level / min(self.local.batch, sizes[site])
            variance += each**2 * steps * self.network.n_params
        ratio = variance**0.5 / signal if signal else 0.0
        text = f"noise moves the model {ratio:.1f} times as far as all patients together could"
        return (Doubt("look", text),) if ratio >= 1 else ()

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        return {"delta": local_delta(session, self.network, self.local, message["params"])}, own

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        return averaged(state, answers, self.weighting)

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        return self.network.predict(state["params"], x)


def private_local(local: Local, noise: float | None) -> Local:
    """The site's own noise multiplier put into the training settings; None trains without DP."""
    if noise is None:
        return replace(local, clip=None, noise_multiplier=None)
    return replace(local, noise_multiplier=noise)


def local_event(local: Local, patients: int, noise: float | None) -> dp_accounting.DpEvent:
    """The event of one round of local training."""
    return training.event(private_local(local, noise), patients)


def trained(
    session: Session,
    network: Network,
    local: Local,
    start: NDArray[Any],
    name: str = "training",
    **extra: Any,
) -> Sealed:
    """Parameters after one round of local training from ``start``."""
    begin = np.ascontiguousarray(start, dtype=np.float32)
    job = DpSgd(network, private_local(local, session.noise), session.size, begin, **extra)
    return session.train(name, job)["params"]


def local_delta(
    session: Session,
    network: Network,
    local: Local,
    start: NDArray[Any],
    name: str = "training",
    **extra: Any,
) -> Sealed:
    """Train from ``start`` and return ``start - trained``: the pseudo-gradient (FedCVR, Algorithm
    2, line 11)."""
    begin = np.ascontiguousarray(start, dtype=np.float32)
    return update_of(session, begin, trained(session, network, local, begin, name, **extra), local)


def update_of(session: Session, begin: Weights, after: Sealed, local: Local) -> Sealed:
    """What leaves of a local training: ``begin - after``, on a public grid coarser than floats
    (docs/floating-point.md)."""
    settings = private_local(local, session.noise)
    return after.then(lambda found: training.on_public_grid(begin - found, settings, session.size))


def weights_field(network: Network) -> Field:
    """A network's parameters in a message."""
    return Field("<f4", (network.n_params,))


def mean_delta(answers: Sequence[Answer], weighting: Weighting) -> NDArray[np.float64]:
    """Average pseudo-gradient, weighted by training patients or uniformly, summed in float64 in the
    order given."""
    total, weight = np.zeros(answers[0].payload["delta"].shape), 0.0
    for answer in answers:
        share = float(answer.patients) if weighting == "size" else 1.0
        total += share * answer.payload["delta"].astype(np.float64)
        weight += share
    return total / weight


def averaged(state: State, answers: Sequence[Answer], weighting: Weighting) -> State:
    """FedAvg on ``params``: w <- w - mean(w - w_k), which is the mean of the w_k."""
    return {"params": (state["params"] - mean_delta(answers, weighting)).astype(np.float32)}


def with_momentum(state: State, step: NDArray[np.float64], momentum: float) -> State:
    """The server's new ``params`` after a mean update, with momentum over rounds (Hsu, Qi, Brown:
    arXiv:1909.06335).

    v <- momentum v + step; w <- w - v. Only releases enter, so it costs no privacy. Without
    momentum no v is kept.

    >>> with_momentum({"params": np.zeros(1, np.float32), "velocity": np.ones(1)}, np.ones(1), 0.5)
    {'params': array([-1.5], dtype=float32), 'velocity': array([1.5])}
    """
    if not momentum:
        return {"params": (state["params"] - step).astype(np.float32)}
    velocity = momentum * state.get("velocity", np.zeros_like(step)) + step
    return {"params": (state["params"] - velocity).astype(np.float32), "velocity": velocity}


def start_weights(network: Network, rng: np.random.Generator) -> State:
    """The public starting point: the same for every method with the same seed."""
    return {"params": network.init(rng)}
