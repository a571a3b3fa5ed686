"""One round on one screen: who takes part, the sites' step, the server's step, checkpoint, stop
rule.

Everything random here is public (who takes part, the starting weights) and derived from the study's
seed, so a run that is resumed repeats itself exactly; what must stay secret is drawn inside the
sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suture.engine.gather import Gathered, gather
from suture.engine.plan import Plan, World, participants
from suture.errors import BudgetExhausted, RunError, StudyError, TooFewSites
from suture.methods.base import Method, State
from suture.protection.envelope import seal
from suture.protection.terms import ProtectionSpec
from suture.study import Study

_PLAIN = ProtectionSpec()


class Party(Protocol):
    """A site's part in one training, as the coordinator sees it: in this process, or behind a
    network."""

    own: dict[str, NDArray[Any]]
    """The site's own state where the coordinator keeps it (one process); empty where it stays at
    the site."""
    noise: float | None
    new_charges: int

    @property
    def patients(self) -> int:
        """The public number of training patients."""

    def spent(self) -> float:
        """Epsilon proven by the site's ledger so far."""

    def charged(self) -> bool:
        """Whether the site's ledger has ever paid for a round of this account."""


@dataclass
class Returned:
    """What came back in a round: sealed answers, and why the others sent none."""

    sealed: dict[str, bytes]
    absent: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Where the sites' steps run. Members are the engine's own kind of `Party`."""

    @property
    def name(self) -> str:
        """As the command line calls it."""

    @property
    def recorded(self) -> Mapping[str, str]:
        """What a run's folder must hold so that the run can be resumed on the same engine."""

    @property
    def threads(self) -> int:
        """How many threads may be used where answers are put together."""

    @property
    def checkpoint_seconds(self) -> float:
        """The least time between two checkpoints; 0: one after every round."""

    def __enter__(self) -> Any:
        """Start."""

    def __exit__(self, *_: object) -> None:
        """Stop, whatever happened; nothing of it runs on."""

    def gather(self, study: Study, base: Path, folder: Path | None, seed: int) -> World:
        """The federation of one seed: who takes part, public sizes, promises made."""

    def members(
        self,
        study: Study,
        here: World,
        plan: Plan,
        seed: int,
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Who trains and who is measured."""

    def scores(
        self, members: Mapping[str, Any], method: Any, state: dict[str, NDArray[Any]], round_: int
    ) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Labels and risks of every site's test patients after a round, where exact figures may
        leave."""

    def figures(self, members: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
        """Metrics that sites computed themselves, with the last scores, because no patient's risk
        may leave them."""

    def groups(
        self, members: Mapping[str, Any], here: World
    ) -> dict[str, dict[str, NDArray[np.str_]]]:
        """The group of each test row at each site, where exact figures may leave."""

    def ask(
        self,
        members: Mapping[str, Any],
        method: Any,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> Returned:
        """One step at every site that has a message.

        `BudgetExhausted` if so many cannot pay that fewer than ``least`` would answer; then nobody
        is charged where the engine can know it beforehand.
        """

    def summed(
        self,
        members: Mapping[str, Any],
        method: Any,
        protection: ProtectionSpec,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> tuple[Returned, Gathered] | None:
        """One round in which only the sum over the sites is seen, where the engine's sites mask
        their answers."""


@dataclass
class Training:
    """What a training holds between rounds: exactly this is checkpointed."""

    state: State
    round: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    stopped: str | None = None
    protection: dict[str, Any] = field(default_factory=dict)
    """What masks cost, how far rounding can have moved a mean, how many updates were shortened,
    what was rejected."""
    absent: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sites that missed rounds they were asked in: how many, and why the last time."""


def start(method: Method, sites: Sequence[str], seed: int) -> Training:
    """Before the first round: public starting weights, the same for every method with the same
    seed."""
    return Training(method.init(sites, np.random.default_rng([seed, 1])))


def train(
    method: Method,
    members: Mapping[str, Any],
    engine: Engine,
    training: Training,
    *,
    rounds: int,
    fraction: float,
    seed: int,
    after_round: Callable[[Training], None],
    protection: ProtectionSpec = _PLAIN,
    minimum: int | None = None,
) -> Training:
    """Rounds until the last, or until the first that some site cannot pay for. Returns the last
    paid-for model.

    ``minimum`` is how many sites must answer a round; None: all that are asked. Fewer end the run
    with `TooFewSites`.
    """
    sites = list(members)
    while training.round < rounds and training.stopped is None:
        round_ = training.round + 1
        chosen = participants(sites, round_, fraction, seed)
        messages = {site: seal(method.broadcast(training.state, site)) for site in chosen}
        now = method.at_round(round_, rounds)
        # A sum in which a site's noise is missing protects nobody as promised: it takes every site.
        # Under masks a sum is opened only if enough sites are in it for the promise
        # (gathering.check).
        every = minimum is None or (method.needs == "secure sum" and protection.sum != "masked")
        least = minimum if minimum is not None and not every else len(chosen)
        try:
            hidden = engine.summed(members, now, protection, messages, round_, least)
            if hidden is None and protection.sum == "masked" and not now.reference:
                _only_in_one_process(engine)
            back = hidden[0] if hidden else engine.ask(members, now, messages, round_, least)
        except BudgetExhausted as error:
            training.stopped = (
                f"{error}; training stopped after {training.round} of {rounds} rounds"
            )
            break
        _count_absent(training, back, round_, least)
        # Under masks a site that is missing must be reckoned with; otherwise it is as if it had not
        # been asked.
        sizes = {
            site: members[site].patients
            for site in chosen
            if site in back.sealed or protection.sum == "masked"
        }
        groups = now.sums(round_, tuple(sizes))
        found = (
            hidden[1]
            if hidden
            else gather(
                now, protection, sizes, back.sealed, round_, messages, engine.threads, groups
            )
        )
        _note(training, found, round_, protection, len(back.sealed), least)
        training.state = now.server_step(training.state, found.answers)
        training.round = round_
        training.bytes_down += sum(map(len, messages.values())) + found.down
        training.bytes_up += sum(map(len, back.sealed.values())) if found.up is None else found.up
        after_round(training)
    return training


def _only_in_one_process(engine: Engine) -> None:
    """Answers that no site has masked may be summed only where whoever runs it holds the rows."""
    if engine.name != "embedded":
        raise StudyError(
            f'protection.sum = "masked" is not carried by engine {engine.name!r}: its coordinator '
            "would see the answers before they are masked. Use --engine embedded, which shows cost "
            'and rounding, or sum = "trusted"'
        )


def _count_absent(training: Training, found: Returned, round_: int, least: int) -> None:
    """No silent shrinking: too few answers end the run, and each site that is missed is counted."""
    if len(found.sealed) < max(1, least):
        reasons = "; ".join(f"{site}: {why}" for site, why in found.absent.items())
        raise TooFewSites(
            f"round {round_}: {len(found.sealed)} sites answered, {max(1, least)} are needed "
            f"({reasons})"
        )
    for site, why in found.absent.items():
        missed = training.absent.setdefault(site, {"rounds": 0})
        missed.update(rounds=missed["rounds"] + 1, why=why)


def _note(
    training: Training,
    found: Gathered,
    round_: int,
    protection: ProtectionSpec,
    answered: int,
    least: int,
) -> None:
    """Record what was rejected, shortened and rounded. A mean over fewer sites than the study needs
    ends the run."""
    if (
        found.rejected
        and protection.aggregation == "mean"
        and answered - len(found.rejected) < least
    ):
        reasons = "; ".join(f"{site}: {why}" for site, why in found.rejected.items())
        raise RunError(
            f"round {round_}: {len(found.rejected)} answers were rejected ({reasons}); {least} are "
            "needed"
        )
    if protection.plain and not found.rejected:
        return
    notes = training.protection
    rejected = notes.setdefault("rejected", {})
    for site, why in found.rejected.items():
        seen = rejected.setdefault(site, {"rounds": 0})
        seen.update(rounds=seen["rounds"] + 1, why=why)
    notes["shortened"] = notes.get("shortened", 0) + found.shortened
    if found.up is not None:
        notes["error"] = max(notes.get("error", 0.0), found.error)
        notes["spare"] = notes.get("spare", 0) + found.spare
        notes["mask_seconds"] = notes.get("mask_seconds", 0.0) + found.seconds


def global_and_sites(
    scores: Mapping[str, tuple[NDArray[np.int32], NDArray[np.float32]]],
    measure: Callable[[NDArray[Any], NDArray[Any]], Mapping[str, float | None]],
) -> tuple[dict[str, float | None], dict[str, dict[str, float | None]]]:
    """A metric function over all test patients together, and over each site's."""
    filled = {site: pair for site, pair in scores.items() if len(pair[0])}
    if not filled:
        return {}, {}
    y = np.concatenate([pair[0] for pair in filled.values()])
    p = np.concatenate([pair[1] for pair in filled.values()])
    return dict(measure(y, p)), {site: dict(measure(*pair)) for site, pair in filled.items()}
