"""One round on one screen: who takes part, the sites' step, the server's step, checkpoint, stop rule.

Everything random here is public (who takes part, the starting weights) and derived from the study's seed, so a run
that is resumed repeats itself exactly; what must stay secret is drawn inside the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from suture.errors import BudgetExhausted, RunError
from suture.gathering import Gathered, gather
from suture.methods.base import Method, State
from suture.protection.envelope import seal
from suture.protection.settings import ProtectionSpec
from suture.site.hospital import Member
from suture.training.local import Local, at_round

_PLAIN = ProtectionSpec()


class Engine(Protocol):
    """Where the sites' steps run."""

    def ask(
        self, members: Mapping[str, Member], method: Any, messages: Mapping[str, bytes], round_: int
    ) -> dict[str, bytes]:
        """One step at every site that has a message; `BudgetExhausted` if one cannot pay."""


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
    """What masks cost, how far rounding can have moved a mean, how many updates were shortened, what was rejected."""


def participants(sites: Sequence[str], round_: int, fraction: float, seed: int) -> list[str]:
    """The sites of one round: a public draw, at least one site, in the study's order.

    >>> participants(["a", "b", "c", "d"], 1, 0.5, 42)
    ['a', 'c']
    >>> participants(["a", "b"], 1, 1.0, 42)
    ['a', 'b']
    """
    if fraction >= 1:
        return list(sites)
    count = max(1, round(fraction * len(sites)))
    rng = np.random.default_rng([seed, 7, round_])
    chosen = set(rng.choice(len(sites), count, replace=False).tolist())
    return [site for i, site in enumerate(sites) if i in chosen]


def rounds_of(sites: Sequence[str], rounds: int, fraction: float, seed: int) -> dict[str, int]:
    """How often each site takes part: known before training, so the noise can be planned for it."""
    if fraction >= 1:
        return dict.fromkeys(sites, rounds)
    counts = dict.fromkeys(sites, 0)
    for round_ in range(1, rounds + 1):
        for site in participants(sites, round_, fraction, seed):
            counts[site] += 1
    return counts


def first_rounds(sites: Sequence[str], rounds: int, fraction: float, seed: int) -> dict[str, int]:
    """The first round of each site that takes part at all: before it, no patient of the site can be in the model.

    >>> first_rounds(["a", "b", "c", "d"], 9, 0.5, 42)
    {'a': 1, 'c': 1, 'b': 2, 'd': 4}
    """
    found: dict[str, int] = {}
    for round_ in range(1, rounds + 1):
        for site in participants(sites, round_, fraction, seed):
            found.setdefault(site, round_)
        if len(found) == len(sites):
            break
    return found


def start(method: Method, sites: Sequence[str], seed: int) -> Training:
    """Before the first round: public starting weights, the same for every method with the same seed."""
    return Training(method.init(sites, np.random.default_rng([seed, 1])))


def scheduled(method: Method, round_: int, rounds: int) -> Method:
    """The method with its local learning rate as it stands in this round; the schedule is public."""
    local = getattr(method, "local", None)
    if not isinstance(local, Local) or at_round(local, round_, rounds) is local:
        return method
    return cast("Method", replace(cast("Any", method), local=at_round(local, round_, rounds)))


def train(
    method: Method,
    members: Mapping[str, Member],
    engine: Engine,
    training: Training,
    *,
    rounds: int,
    fraction: float,
    seed: int,
    after_round: Callable[[Training], None],
    protection: ProtectionSpec = _PLAIN,
) -> Training:
    """Rounds until the last, or until the first that some site cannot pay for. Returns the last paid-for model."""
    sites = list(members)
    while training.round < rounds and training.stopped is None:
        round_ = training.round + 1
        chosen = participants(sites, round_, fraction, seed)
        messages = {site: seal(method.broadcast(training.state, site)) for site in chosen}
        now = scheduled(method, round_, rounds)
        try:
            sealed = engine.ask(members, now, messages, round_)
        except BudgetExhausted as error:
            training.stopped = f"{error}; training stopped after {training.round} of {rounds} rounds"
            break
        sizes = {site: members[site].hospital.patients for site in chosen}
        found = gather(now, protection, sizes, sealed, round_, messages, getattr(engine, "threads", 1))
        _note(training, found, round_, protection)
        training.state = now.server_step(training.state, found.answers)
        training.round = round_
        training.bytes_down += sum(map(len, messages.values())) + found.down
        training.bytes_up += sum(map(len, sealed.values())) if found.up is None else found.up
        after_round(training)
    return training


def _note(training: Training, found: Gathered, round_: int, protection: ProtectionSpec) -> None:
    """Record what was rejected, shortened and rounded. A plain mean goes on without nobody in silence."""
    if found.rejected and protection.aggregation == "mean":
        reasons = "; ".join(f"{site}: {why}" for site, why in found.rejected.items())
        raise RunError(f"round {round_}: {len(found.rejected)} answers were rejected ({reasons})")
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
