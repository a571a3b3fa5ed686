"""One question about one site's column, one noisy answer: what ``suture release`` does.

The account of a study's releases is ``<study>/releases`` in the site's own ledger, beside the
trainings. Its budget is fixed by the first release and never raised. Releases and trainings concern
the same patients, so the answer also states what everything in the site's ledger costs together.

As everywhere, the event is known first, the ledger is charged and durable, and only then does the
door add noise. The charge depends on the study, the edition of the table and the question alone.
The same question has the same answer, from the ledger's file, whatever has become of the rows.
Noise is the discrete Gaussian, sampled exactly (``privacy/noise/mechanisms.py``), or the Gaussian of
the analytic mechanism in floating point (docs/floating-point.md says what that does not promise).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
from dp_accounting.dp_event import DpEvent

from suture.engine.federation import request, survey
from suture.errors import StudyError
from suture.privacy import door
from suture.privacy.accounting.accountant import epsilon as epsilon_of_event
from suture.privacy.accounting.planner import noise_for
from suture.privacy.canonical import digest
from suture.privacy.ledger.chain import Receipt
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.noise.mechanisms import Counts
from suture.privacy.software import software
from suture.privacy.unit import NEIGHBOURS
from suture.protection.envelope import seal, unseal
from suture.releases.counts import (
    Column,
    Figures,
    Floats,
    Tally,
    bin_edges,
    histogram_counts,
    quantiles,
    rate,
    rate_counts,
    read_column,
    shares,
)
from suture.schema.table import Schema
from suture.site.gate import admit
from suture.site.passage import Passage
from suture.site.places import Place, open_ledger, open_lifetime, place_of, secret_of
from suture.study import Study

KINDS = ("rate", "histogram", "quantiles")
MECHANISMS: tuple[Literal["discrete", "gaussian"], ...] = ("discrete", "gaussian")


class Options(TypedDict, total=False):
    """What a question may state besides its kind and column."""

    above: float | None
    bins: int | None
    cap: int | None
    at: Sequence[float]


class Released(Figures):
    """What left the site, and what it cost."""

    kind: str
    study: str
    site: str
    column: str
    contribution: str
    sensitivity: float
    mechanism: str
    noise_sd: float
    noise_multiplier: float
    epsilon: float
    delta: float
    accountant: str
    unit: str
    neighbours: str
    account: str
    budget: float
    spent: float
    spent_by_all_accounts: float | None
    ledger_entry: int
    repeated: bool
    ledger: str


@dataclass(frozen=True)
class Question:
    """What is asked of one column."""

    kind: str
    column: str
    above: float | None = None
    bins: int | None = None
    cap: int | None = None
    at: Sequence[float] = (0.25, 0.5, 0.75)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise StudyError(f"expected a release of kind {', '.join(KINDS)}; found {self.kind!r}")

    @property
    def size(self) -> int:
        """The number of bins of a number."""
        return self.bins if self.bins is not None else (10 if self.kind == "histogram" else 64)

    def count(self, column: Column) -> Tally:
        """What each patient is counted under."""
        if self.kind == "rate":
            return rate_counts(column, self.above)
        if self.kind == "histogram":
            return histogram_counts(column, self.size, self.cap)
        bin_edges(column.feature, self.size)
        if any(not 0 < q < 1 for q in self.at) or not self.at:
            raise StudyError("quantiles must be between 0 and 1, such as --at 0.25 --at 0.5")
        return histogram_counts(column, self.size)

    def figures(self, tally: Tally, noisy: Noisy, column: Column) -> Figures:
        """What the noisy counts say."""
        counts = noisy.counts
        if self.kind == "rate":
            return rate(float(counts[0]), float(counts[1]), noisy.sd)
        if self.kind == "histogram":
            return {"bins": shares(counts, tally.labels, noisy.sd)}
        edges = bin_edges(column.feature, self.size)
        return {"quantiles": quantiles(counts, edges, self.at, noisy.sd)}


@dataclass(frozen=True)
class Noisy:
    """Noisy counts, the noise's standard deviation, what they cost, and the ledger's receipt."""

    counts: Floats
    sd: float
    event: DpEvent
    receipt: Receipt


@dataclass(frozen=True)
class Account:
    """A study's account of releases at one site: the gate has admitted the study, and the budget is
    in the site's ledger."""

    ledger: Ledger
    name: str
    budget: Budget
    secret: bytes
    passage: Passage | None
    plan: str
    site: str
    edition: int

    def release(
        self, tally: Tally, mechanism: Counts, question: tuple[object, ...], what: str
    ) -> Noisy:
        """Charge the question and let the door add noise to the counts. A question that was asked
        before is not charged again.

        ``question`` is everything that was asked; the study's digest, with the declared bounds, is
        part of the context.
        """
        kind, about = str(question[0]), digest((*question, mechanism))
        context = door.Context(self.plan, self.site, self.edition, self.name, kind, 0, 0, 0, about)
        receipt = self.ledger.charge(self.name, 0, mechanism.event, context.mark, what=what)
        kept = self.ledger.kept(context.mark.hex())
        if kept is not None:
            counts = unseal(kept)["counts"]
        else:
            table, event, noise = tally.table(), mechanism.event, mechanism.multiplier
            root = door.root_key(self.secret, context, {}, table.fingerprint(), software())
            session = door.Session(table, event, root, round_=0, site=self.site, noise=noise)
            sealed = door.opened({"counts": session.release("counts", mechanism, tally.each)})
            self.ledger.keep(context.mark.hex(), seal(sealed))
            counts = sealed["counts"]
        sd = float(mechanism.sigma)
        return Noisy(np.asarray(counts, np.float64), sd, mechanism.event, receipt)


def counting(tally: Tally, multiplier: float, noise: str = "discrete") -> Counts:
    """The mechanism of a tally: noise worth a Gaussian event of ``multiplier`` on every count."""
    kind = next((known for known in MECHANISMS if known == noise), None)
    if kind is None:
        raise StudyError(f"expected mechanism {' or '.join(MECHANISMS)}, found {noise!r}")
    return Counts(len(tally.labels), float(tally.sensitivity), float(multiplier), kind)


def release(
    study: Study,
    kind: str,
    column: str,
    *,
    site: str,
    epsilon: float,
    delta: float | None = None,
    budget: float | None = None,
    mechanism: str = "discrete",
    base: Path | None = None,
    **options: Unpack[Options],
) -> Released:
    """Release one statistic of one column of one site: charged first, then noisy; plain JSON.

    >>> study = Study(name="demo", outcome="high_risk", cohort={"name": "cardio", "patients": 600})
    >>> found = release(study, "rate", "high_risk", site="cardiology", epsilon=1.0, budget=1.0)
    >>> found["epsilon"] <= 1.0, found["interval"][0] <= found["rate"] <= found["interval"][1]
    (True, True)
    """
    question = Question(kind, column, **options)
    if not 0 < epsilon < math.inf:
        raise StudyError(f"expected an epsilon above 0 and finite, found {epsilon}")
    place, schema = _place(study, base or Path(), site)
    with open_account(study, place, schema, delta=delta, budget=budget) as account:
        passage, promise = account.passage, account.budget
        read = read_column(place.source, schema, study.outcome, column, site=site, passage=passage)
        tally = question.count(read)
        multiplier = noise_for(epsilon, promise.delta, 1.0, 1, promise.accountant)
        above, bins, cap = question.above, question.size, question.cap
        what = f"{kind} of {column!r}, above={above!r}, bins={bins}, cap={cap!r}"
        asked = (kind, column, above, bins, cap)
        noisy = account.release(tally, counting(tally, multiplier, mechanism), asked, what)
        spent, together = account.ledger.spent(account.name), account.ledger.spent_in_all()
        return {
            "kind": kind,
            "study": study.name,
            "site": site,
            "column": column,
            **question.figures(tally, noisy, read),
            "contribution": tally.contribution,
            "sensitivity": tally.sensitivity,
            "mechanism": mechanism,
            "noise_sd": noisy.sd,
            "noise_multiplier": noisy.event.noise_multiplier,
            "epsilon": _up(epsilon_of_event(noisy.event, promise.delta, promise.accountant)),
            "delta": promise.delta,
            "accountant": promise.accountant,
            "unit": "patient",
            "neighbours": NEIGHBOURS,
            "account": account.name,
            "budget": promise.epsilon,
            "spent": _up(spent),
            "spent_by_all_accounts": _up(together) if math.isfinite(together) else None,
            "ledger_entry": noisy.receipt.entry,
            "repeated": noisy.receipt.repeated,
            "ledger": "memory (generated patients)" if place.home is None else "the site's own",
        }


@contextmanager
def open_account(
    study: Study, place: Place, schema: Schema, *, delta: float | None, budget: float | None
) -> Iterator[Account]:
    """Ledger, gate and budget of a site's releases, before any row is read."""
    if study.simulation:
        raise StudyError(
            "simulation = true: nothing of a simulation is released; remove it from [study], and "
            "declare patients = ... in every [[site]]"
        )
    secret, name = secret_of(place, study.seed), f"{study.name}/releases"
    with closing(open_ledger(place, None)) as ledger:
        promise = _budget(study, ledger, name, delta, budget)
        passage = None
        if place.home is not None:
            asked = request(study, schema, place.name)
            asked = replace(asked, unit="patient", epsilon=promise.epsilon, delta=promise.delta)
            passage = admit(ledger, secret, place.papers, asked).passage
        open_lifetime(place, ledger)
        ledger.open_study(name, promise)
        plan, edition = study.digest, place.edition
        yield Account(ledger, name, promise, secret, passage, plan, place.name, edition)


def _place(study: Study, base: Path, site: str) -> tuple[Place, Schema]:
    """The site and the schema; no other site is looked at."""
    if study.cohort is not None:
        world = survey(study, base, study.seed)
        places, schema = world.places, world.schema
    else:
        places = tuple(place_of(known, base) for known in study.sites)
        if study.table is None:
            raise StudyError("[[site]] tables need a [schema]")
        schema = study.table
    for place in places:
        if place.name == site:
            return place, schema
    names = ", ".join(place.name for place in places)
    raise StudyError(f"site {site!r} is not in the study; it has: {names}")


def _budget(
    study: Study, ledger: Ledger, account: str, delta: float | None, budget: float | None
) -> Budget:
    """The account's budget where it has one; else the one asked for, or the study's own epsilon.
    The ledger refuses one that differs from the first."""
    if ledger.promised(account) and budget is None and delta is None:
        return ledger.budget(account)
    privacy = study.privacy
    total = budget if budget is not None else (privacy.epsilon if privacy else None)
    if total is None:
        raise StudyError(
            "the first release at a site fixes what all releases of the study may spend there; "
            "state it, such as --budget 2"
        )
    if privacy is None:
        return Budget(total, delta or 1e-5, "pld")
    return Budget(total, delta or privacy.delta, privacy.accountant)


def _up(value: float) -> float:
    return math.ceil(value * 1e4 * (1 - 1e-12)) / 1e4
