"""From the sites' answers to what the server's step sees: screened, and then as they are, summed,
or made one robustly.

| ``[protection]``                | method needs  | the server's step sees                                  |
|---------------------------------|---------------|---------------------------------------------------------|
| nothing                         | each, sum     | every answer                                            |
| nothing                         | a secure sum  | the sum, computed by a party trusted not to look        |
| ``sum = "masked"``              | sum, or more  | the sum under masks (`protection/masked.py`)            |
| ``aggregation = "median"``, ... | sum           | one update: the median, trimmed mean or Krum's choice   |
| ``norm_bound`` alone            | sum           | every answer, shortened                                 |

Methods that are references (alone, pooled) have nothing to add up and are left as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.errors import RunError, StudyError
from suture.methods.base import Answer, Method
from suture.privacy.canonical import digest
from suture.protection import robust
from suture.protection.envelope import unseal
from suture.protection.masked import secure_total, standing_total
from suture.protection.robust import Bounded, shares
from suture.protection.secure_sum import SecureSum, plain_words
from suture.protection.terms import LEAST_SITES, NORM_BOUND, ProtectionSpec, Stage, threshold_of

SUM_OF_ALL = "sum of all sites"
Words = dict[str, NDArray[Any]]


@dataclass
class Gathered:
    """What the server's step sees, which answers were rejected and why, and the masks' own bytes
    and facts."""

    answers: list[Answer]
    rejected: dict[str, str] = field(default_factory=dict)
    up: int | None = None
    """Bytes from the sites where they are not the answers' own."""
    down: int = 0
    error: float = 0.0
    """The most by which rounding can have moved an entry of a mean."""
    shortened: int = 0
    seconds: float = 0.0
    spare: int = 0
    """Spare rounds that were used up because a sum under masks broke off after sites had paid."""


def gather(
    method: Method,
    protection: ProtectionSpec,
    patients: Mapping[str, int],
    sealed: Mapping[str, bytes],
    round_: int,
    messages: Mapping[str, bytes],
    threads: int = 1,
    groups: Sequence[tuple[str, ...]] | None = None,
) -> Gathered:
    """One round's answers, put together as the study says. ``patients`` are the public sizes of the
    sites asked.

    ``groups`` are the sites of each secure sum, where a method asks different sites for different
    sums.
    """
    replies = [robust.Reply(site, round_, unseal(data)) for site, data in sealed.items()]
    if groups is not None and method.needs == "secure sum":
        return _by_group(method, protection, patients, replies, messages, threads, groups)
    used, rejected = robust.screen(replies, list(patients), round_)
    answers = [Answer(reply.site, patients[reply.site], reply.payload) for reply in used]
    if not answers:
        raise RunError(f"round {round_}: no site's answer can be used ({rejected})")
    nothing = not any(
        answer.payload for answer in answers
    )  # rounds in which sites keep what they learn
    if nothing or method.reference or (protection.plain and method.needs != "secure sum"):
        return Gathered(answers, rejected)
    if protection.sum == "masked":
        return replace(
            masked(method, protection, patients, answers, messages, round_, threads),
            rejected=rejected,
        )
    if method.needs == "secure sum":
        box = SecureSum(tuple(patients))
        for answer in answers:
            box.add(answer.site, answer.payload)
        return Gathered(
            [Answer(SUM_OF_ALL, sum(patients.values()), box.total(), len(patients))], rejected
        )
    return replace(robustly(method, protection, answers), rejected=rejected)


def _by_group(
    method: Method,
    protection: ProtectionSpec,
    patients: Mapping[str, int],
    replies: Sequence[robust.Reply],
    messages: Mapping[str, bytes],
    threads: int,
    groups: Sequence[tuple[str, ...]],
) -> Gathered:
    """One secure sum for each group of sites, trusted or under masks; who is in none has sent
    nothing."""
    found = Gathered([], up=0 if protection.sum == "masked" else None)
    for number, group in enumerate(groups, 1):
        name = SUM_OF_ALL if len(group) == len(patients) else f"sum {number} of {len(groups)}"
        sizes = {site: patients[site] for site in group}
        # Sites of one sum send the same shapes; those of different sums do not.
        used, wrong = robust.screen(
            [r for r in replies if r.site in sizes], list(group), replies[0].round
        )
        found.rejected |= wrong
        inside = [Answer(reply.site, sizes[reply.site], reply.payload) for reply in used]
        if protection.sum == "masked":
            check_sum(method, protection, group)
            one = masked(
                method,
                protection,
                sizes,
                inside,
                {site: messages[site] for site in group},
                replies[0].round,
                threads,
            )
            found.up = (found.up or 0) + (one.up or 0)
            found.down += one.down
            found.seconds += one.seconds
            found.answers.append(replace(one.answers[0], site=name))
            continue
        box = SecureSum(group)
        for answer in inside:
            box.add(answer.site, answer.payload)
        found.answers.append(Answer(name, sum(sizes.values()), box.total(), len(group)))
    return found


def masked(
    method: Method,
    protection: ProtectionSpec,
    patients: Mapping[str, int],
    answers: list[Answer],
    messages: Mapping[str, bytes],
    round_: int,
    threads: int,
) -> Gathered:
    """The sum under masks, with every party in this process; sites without an answer have dropped
    out."""
    grid = grid_of(method, protection, len(patients))
    found = {
        answer.site: words_of(method, grid, patients, answer.site, answer.payload)
        for answer in answers
    }
    asked = question(method, messages, protection.model_dump(), dict(patients))
    if protection.keys == "study":
        total = standing_total(
            found, tuple(patients), threshold=protection.threshold, asked=asked, first=round_ == 1
        )
    else:
        empty = next(iter(found.values()))
        leave: dict[Stage, list[str]] = {"mask": [site for site in patients if site not in found]}
        total = secure_total(
            {site: found.get(site, empty) for site in patients},
            threshold=protection.threshold,
            asked=asked,
            leave=leave,
            threads=threads,
        )
    stayed = total.survivors
    answer, error = opened(method, grid, patients, stayed, total.words)
    cost = total.cost
    return Gathered(
        [answer],
        up=sum(cost.up.values()),
        down=sum(cost.down.values()),
        error=error,
        shortened=sum(grid.is_long(a.payload["delta"]) for a in answers) if grid else 0,
        seconds=cost.server_seconds + sum(cost.site_seconds.values()),
    )


def grid_of(method: Method, protection: ProtectionSpec, parties: int) -> Bounded | None:
    """The grid of a mean; None for methods whose answers are whole numbers already."""
    if method.needs == "secure sum":
        return None
    return Bounded(protection.norm_bound or NORM_BOUND, parties, protection.word)


def words_of(
    method: Method,
    grid: Bounded | None,
    patients: Mapping[str, int],
    site: str,
    payload: Mapping[str, NDArray[Any]],
) -> Words:
    """A site's side: its answer as whole numbers, ready to be masked. ``patients`` are the public
    sizes of all asked."""
    if grid is None:
        return plain_words(payload)
    if set(payload) != {"delta"}:
        raise RunError(
            f"{method.name}: expected an update alone to be summed under masks, found "
            f"{sorted(payload)}"
        )
    return {"delta": grid.words(payload["delta"], _shares(method, patients)[site])}


def opened(
    method: Method,
    grid: Bounded | None,
    patients: Mapping[str, int],
    survivors: tuple[str, ...],
    total: Words,
) -> tuple[Answer, float]:
    """The server's side: what the method's step sees, and the most by which rounding can have moved
    an entry."""
    people = sum(patients[site] for site in survivors)
    if grid is None:
        return Answer(SUM_OF_ALL, people, total, len(survivors)), 0.0
    every = _shares(method, patients)
    part = sum(every[site] for site in survivors)
    mean = {"delta": grid.mean(total["delta"], part)}
    return Answer(SUM_OF_ALL, people, mean, len(survivors)), grid.error(len(survivors), part)


def question(method: Method, messages: Mapping[str, bytes], *context: object) -> bytes:
    """A digest of what was asked, the same for every site: sites only open sums of answers to one
    question.

    ``context`` is all else that decides what a site adds: the study, the protection, every site's
    size, the round. Whatever is left out a server could tell each site differently: with other
    sizes, or a norm bound of almost nothing, for all sites but one, the sum would be that one's
    update.
    """
    different = set(messages.values())
    if len(different) != 1:
        raise RunError(
            f"{method.name}: a secure sum needs one message for all sites, found {len(different)} "
            "different"
        )
    return digest((method.name, different.pop(), *context))


def robustly(method: Method, protection: ProtectionSpec, answers: list[Answer]) -> Gathered:
    """Updates shortened to the bound, and then made one by the study's rule."""
    updates = np.stack(
        [answer.payload["delta"].reshape(-1).astype(np.float64) for answer in answers]
    )
    long = 0
    if protection.norm_bound is not None:
        long = int(np.count_nonzero(np.linalg.norm(updates, axis=1) > protection.norm_bound))
        updates = robust.bounded(updates, protection.norm_bound)
    shape = answers[0].payload["delta"].shape
    if protection.aggregation == "mean":
        kept = [
            replace(a, payload={**a.payload, "delta": u.reshape(shape)})
            for a, u in zip(answers, updates, strict=True)
        ]
        return Gathered(kept, shortened=long)
    if protection.aggregation == "krum":
        one = robust.krum(updates, protection.wrong, protection.keep)
    else:
        one = robust.aggregate(
            protection.aggregation, updates, [1.0] * len(answers), protection.wrong
        )
    people = sum(answer.patients for answer in answers)
    return Gathered(
        [Answer(f"{protection.aggregation} of all sites", people, {"delta": one.reshape(shape)})],
        shortened=long,
    )


def check(method: Method, protection: ProtectionSpec, sites: int | None = None) -> None:
    """Refuse what a study's ``[protection]`` cannot do for a method; with the number of ``sites``
    in a round, more of it."""
    if method.reference or protection.plain:
        return
    if protection.sum == "masked":
        if method.needs == "each":
            raise StudyError(
                f'protection.sum = "masked" hides single answers, and {method.name} needs each of '
                "them; `suture methods` lists those that need only a sum"
            )
        if sites is None:
            return
        check_opened(method, protection, sites, method.honest_sites)
        return
    if method.needs != "sum":
        raise StudyError(
            "protection.aggregation and norm_bound serve methods that average updates; "
            f"{method.name} does not"
        )
    if sites is None:
        return
    most = robust.most_wrong(protection.aggregation, sites)
    if protection.aggregation in ("trimmed-mean", "krum") and protection.wrong > most:
        raise StudyError(
            f'protection.wrong: with {sites} sites in a round "{protection.aggregation}" covers '
            f"{most} hostile ones at most, "
            f"found {protection.wrong}"
        )
    if protection.aggregation == "krum" and (
        sites < 3 or protection.keep > sites - protection.wrong
    ):
        raise StudyError(
            f"protection.keep: Krum with {sites} sites and {protection.wrong} wrong cannot keep "
            f"{protection.keep}"
        )


def check_sum(method: Method, protection: ProtectionSpec, group: Sequence[str]) -> None:
    """Refuse a sum of one group of sites under masks if it could be opened with less noise than the
    promise counts on."""
    check(method, protection)
    check_opened(method, protection, len(group), method.honest_of(group))


def check_opened(method: Method, protection: ProtectionSpec, sites: int, honest: int) -> None:
    """Of t sites in an opened sum, c may tell the server their noise: t - c >= h must carry what
    the promise counts on.

    And t must be so large that no two lists of dropouts can be signed (2 t > n + c; CCS 2017,
    Theorem 6.5).
    """
    opened, colluders = threshold_of(sites, protection.threshold), protection.colluders
    if sites < LEAST_SITES:
        raise StudyError(
            f'protection.sum = "masked" needs at least {LEAST_SITES} sites in a sum, found {sites}'
        )
    if opened - colluders < honest:
        raise StudyError(
            f"protection: sums of {opened} of {sites} sites would be opened, of which {colluders} "
            "may collude with the "
            f"server; the promise of {method.name} counts on the noise of {honest}. Raise "
            "protection.threshold, or lower "
            "method.honest, method.teams or protection.colluders"
        )
    if 2 * opened <= sites + colluders:
        raise StudyError(
            f"protection: with {colluders} colluding of {sites} sites, a sum must keep more than "
            f"{(sites + colluders) / 2:g} "
            f"sites; protection.threshold keeps {opened}. Raise it, or lower protection.colluders"
        )


def _shares(method: Method, patients: Mapping[str, int]) -> dict[str, float]:
    by_size = method.weighting == "size"
    return shares({site: float(count) if by_size else 1.0 for site, count in patients.items()})
