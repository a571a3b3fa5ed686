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

from suture.errors import BudgetExhausted
from suture.methods.base import Answer, Grouped, Method, State
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import SecureSum
from suture.site.hospital import Member
from suture.training.local import Local, at_round

SUM_OF_ALL = "sum of all sites"


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
        answers = _answers(method, training.state, {site: members[site].hospital.patients for site in chosen}, sealed)
        training.state = now.server_step(training.state, answers)
        training.round = round_
        training.bytes_down += sum(map(len, messages.values()))
        training.bytes_up += sum(map(len, sealed.values()))
        after_round(training)
    return training


def _answers(method: Method, state: State, patients: Mapping[str, int], sealed: Mapping[str, bytes]) -> list[Answer]:
    """What the server gets to see: every site's answer, or, where the method's promise needs it, only sums of them."""
    if method.needs != "secure sum":
        return [Answer(site, count, unseal(sealed[site])) for site, count in patients.items()]
    groups = method.groups(state, tuple(patients)) if isinstance(method, Grouped) else [tuple(patients)]
    found = []
    for number, group in enumerate(groups, 1):
        box = SecureSum(group)
        for site in group:
            box.add(site, unseal(sealed[site]))
        name = SUM_OF_ALL if len(group) == len(patients) else f"sum {number} of {len(groups)}"
        found.append(Answer(name, sum(patients[site] for site in group), box.total()))
    return found


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
