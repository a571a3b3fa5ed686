"""What a method is: pure functions over explicit state. Each method is one paper in one file beside
this one.

State, messages and answers are named arrays, so that a checkpoint, an envelope and a test can hold
them as they are. A method never sees a ledger, a file, a socket or a row: the site charges
`round_event`, and then gives `site_step` a `Session`, to which the method hands mechanisms and
functions that say what each patient adds (`suture/privacy/door.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

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


@dataclass(frozen=True)
class Answer:
    """What one site sent back in a round, or the sum of ``sites`` of them. ``patients``: their
    public number in training."""

    site: str
    patients: int
    payload: Arrays
    sites: int = 1


class Base:
    """What holds for most methods; those for which it does not say so themselves."""

    @property
    def honest_sites(self) -> int:
        """Every answer carries all of its noise: no other site's is counted on."""
        return 0


class Method(Protocol):
    """The interface every method implements (conformance suite:
    tests/contracts/test_methods.py)."""

    @property
    def name(self) -> str:
        """As written in a study file."""

    @property
    def label(self) -> str:
        """As written in a table or figure."""

    @property
    def needs(self) -> Literal["sum", "each", "secure sum"]:
        """Whether the server needs each answer, or only their weighted sum (then a secure sum
        serves).

        "secure sum" says more: the promise holds only when the server sees nothing but the sum, so
        it is given no more.
        """

    @property
    def honest_sites(self) -> int:
        """Of how many sites in a sum the promise counts the noise; 0 where every answer carries all
        of its own."""

    @property
    def weighting(self) -> Literal["size", "uniform"]:
        """What a site counts for in a mean: its declared size, or the same as every other."""

    @property
    def pooled(self) -> bool:
        """True only for the reference that moves all rows to one place."""

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The server's state before the first round."""

    def broadcast(self, state: State, site: str) -> Arrays:
        """What a site is sent."""

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """What the message of a round to a site holds: the type, shape and range of every array.
        Nothing else is read."""

    def round_event(
        self, round_: int, site: str, size: int, noise: float | None
    ) -> dp_accounting.DpEvent:
        """What a site's step in round 1, 2, ... costs: known from public facts, before rows are
        touched."""

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Train at the site: what leaves, which only the door can make, and the site's new own
        state (which stays)."""

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """The server's new state."""

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """Risk for encoded rows, as this site would compute it: each row's is a function of that
        row alone, to the last bit."""


@runtime_checkable
class Telling(Protocol):
    """A method with more to say about its model than metrics, such as FedCluster's groups."""

    def facts(self, state: State) -> dict[str, object]:
        """Plain values for the result."""


@runtime_checkable
class Mixed(Protocol):
    """A method that predicts with several models together, each of which can be measured by
    itself."""

    def parts(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> dict[str, NDArray[np.float32]]:
        """Every part's risk, by name."""


@runtime_checkable
class Grouped(Protocol):
    """A method that needs secure sums and asks different groups of sites for different ones."""

    def groups(self, state: State, sites: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """The sites of each sum of the coming round; a site in none of them has sent nothing."""

    def honest_of(self, group: Sequence[str]) -> int:
        """Of how many sites of such a sum the promise counts the noise: with fewer it must not be
        opened."""


@runtime_checkable
class Phased(Method, Protocol):
    """A method whose rounds differ in what they release, and which says in words how it protects
    it."""

    @property
    def by_size(self) -> bool:
        """Whether a round's cost depends on how many patients a site has."""

    def mechanism(self) -> str:
        """In words for a privacy officer: what leaves, how it is protected, on which
        assumptions."""


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


def mean_delta(
    answers: Sequence[Answer], weighting: Literal["size", "uniform"]
) -> NDArray[np.float64]:
    """Average pseudo-gradient, weighted by training patients or uniformly, summed in float64 in the
    order given."""
    total, weight = np.zeros(answers[0].payload["delta"].shape), 0.0
    for answer in answers:
        share = float(answer.patients) if weighting == "size" else 1.0
        total += share * answer.payload["delta"].astype(np.float64)
        weight += share
    return total / weight


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
