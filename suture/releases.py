"""A study's site, one question, one noisy answer: what ``suture release`` does.

The account of a study's releases is ``<study>/releases`` in the site's own ledger, beside the trainings. Its budget is
fixed by the first release and never raised. Releases and trainings concern the same patients: the answer therefore also
states what everything in the site's ledger costs together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from suture.errors import StudyError
from suture.places import Place, open_ledger, place_of, site_secret
from suture.privacy.accountant import epsilon as epsilon_of_event
from suture.privacy.calibration import noise_for
from suture.privacy.ledger import Budget, Ledger
from suture.privacy.mechanisms import seeded_key
from suture.privacy.unit import NEIGHBOURS
from suture.site import estimates
from suture.site.gate import admit
from suture.site.passage import Passage
from suture.site.release import (
    Column,
    Counts,
    Noisy,
    bin_edges,
    charge_and_add_noise,
    histogram_counts,
    rate_counts,
    read_column,
    refuse_empty,
)
from suture.site.schema import Schema
from suture.study import Study
from suture.world import request, survey

KINDS = ("rate", "histogram", "quantiles")


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
    above: float | None = None,
    bins: int | None = None,
    cap: int | None = None,
    at: Sequence[float] = (0.25, 0.5, 0.75),
) -> dict[str, Any]:
    """Release one figure about one column of one site: charged first, then noisy; plain JSON.

    >>> study = Study(name="demo", outcome="high_risk", cohort={"name": "cardio", "patients": 600})
    >>> found = release(study, "rate", "high_risk", site="cardiology", epsilon=1.0, budget=1.0)
    >>> found["epsilon"] <= 1.0, found["interval"][0] <= found["rate"] <= found["interval"][1]
    (True, True)
    """
    if kind not in KINDS:
        raise StudyError(f"expected a release of kind {', '.join(KINDS)}; found {kind!r}")
    if not 0 < epsilon < math.inf:
        raise StudyError(f"expected an epsilon above 0 and finite, found {epsilon}")
    place, schema = _place(study, base or Path(), site)
    with opened(study, place, schema, delta=delta, budget=budget) as desk:
        ledger, account, promise, secret = desk.ledger, desk.account, desk.promise, desk.secret
        read = read_column(place.source, schema, study.outcome, column, site=site, passage=desk.passage)
        bins = bins if bins is not None else (10 if kind == "histogram" else 64)
        counts = _counts(kind, read, above, bins, cap, at)
        refuse_empty(counts, site)
        multiplier = noise_for(epsilon, promise.delta, 1.0, 1, promise.accountant)
        noisy = charge_and_add_noise(
            counts,
            multiplier,
            ledger=ledger,
            account=account,
            secret=secret,
            question=f"{kind} of {column!r}, above={above!r}, bins={bins}, cap={cap!r}",
            content=read.fingerprint(),
            mechanism=mechanism,
        )
        found = {"kind": kind, "study": study.name, "site": site, "column": column}
        found |= _estimate(kind, counts, noisy, at, read, bins)
        return found | _costs(ledger, account, promise, noisy, counts, mechanism, place)


@dataclass(frozen=True)
class Desk:
    """A site that is ready to release: its gate has admitted the study, the account's budget is in its ledger."""

    ledger: Ledger
    account: str
    promise: Budget
    secret: bytes
    passage: Passage | None


@contextmanager
def opened(study: Study, place: Place, schema: Schema, *, delta: float | None, budget: float | None) -> Iterator[Desk]:
    """Gate, ledger and budget of a site's releases, in this order, before any row is read."""
    promise = _promise(study, delta, budget)
    secret, ledger = _site(place, study.seed)
    with closing(ledger):
        account = f"{study.name}/releases"
        promise = _kept(ledger, account, promise, asked=budget is not None or delta is not None)
        passage = None
        if place.home is not None:
            asked = replace(
                request(study, schema, place.name), unit="patient", epsilon=promise.epsilon, delta=promise.delta
            )
            passage = admit(ledger, secret, place.papers, asked).passage
        if place.lifetime is not None:
            ledger.open_lifetime(place.lifetime)
        ledger.open_study(account, promise)
        yield Desk(ledger, account, promise, secret, passage)


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
    place = next((place for place in places if place.name == site), None)
    if place is None:
        raise StudyError(f"site {site!r} is not in the study; it has: {', '.join(place.name for place in places)}")
    return place, schema


def _counts(kind: str, read: Column, above: float | None, bins: int, cap: int | None, at: Sequence[float]) -> Counts:
    if kind == "rate":
        return rate_counts(read, above)
    if kind == "quantiles":
        bin_edges(read.feature, bins)
        if any(not 0 < q < 1 for q in at) or not at:
            raise StudyError("expected quantiles between 0 and 1, such as --at 0.25 --at 0.5 --at 0.75")
    return histogram_counts(read, bins, cap if kind == "histogram" else None)


def _promise(study: Study, delta: float | None, budget: float | None) -> Budget | None:
    """The budget asked for, or the study's own epsilon; None when neither is stated."""
    privacy = study.privacy
    total = budget if budget is not None else (privacy.epsilon if privacy else None)
    if total is None:
        return None
    return Budget(total, delta or (privacy.delta if privacy else 1e-5), privacy.accountant if privacy else "pld")


def _kept(ledger: Ledger, account: str, promise: Budget | None, *, asked: bool) -> Budget:
    """The account's budget where it has one (another one that is asked for is refused by the ledger)."""
    if ledger.promised(account) and not asked:
        return ledger.budget(account)
    if promise is None:
        raise StudyError(
            "the first release at a site fixes what all releases of the study may spend: state it, such as --budget 2"
        )
    return promise


def _site(place: Place, seed: int) -> tuple[bytes, Ledger]:
    if place.home is None:  # generated patients: nothing to protect, and nothing to remember between runs
        return seeded_key(seed, "site", place.name), open_ledger(place, None)
    return site_secret(place.home), open_ledger(place, None)


def _estimate(kind: str, counts: Counts, noisy: Noisy, at: Sequence[float], read: Column, bins: int) -> dict[str, Any]:
    values = noisy.counts
    if kind == "rate":
        return {
            **estimates.rate(float(values[0]), float(values[1]), noisy.sd),
            "events": max(0.0, float(values[0])),
            "patients": max(0.0, float(np.sum(values))),
        }
    if kind == "histogram":
        return {"bins": estimates.shares(values, counts.labels, noisy.sd)}
    return {"quantiles": estimates.quantiles(values, bin_edges(read.feature, bins), at, noisy.sd)}


def _costs(
    ledger: Ledger, account: str, promise: Budget, noisy: Noisy, counts: Counts, mechanism: str, place: Place
) -> dict[str, Any]:

    spent, together = ledger.spent(account), ledger.spent_in_all(promise)
    receipt = noisy.release.receipt
    return {
        "contribution": counts.contribution,
        "sensitivity": counts.sensitivity,
        "mechanism": mechanism,
        "noise_sd": noisy.sd,
        "noise_multiplier": noisy.event.noise_multiplier,
        "epsilon": _up(epsilon_of_event(noisy.event, promise.delta, promise.accountant)),
        "delta": promise.delta,
        "accountant": promise.accountant,
        "unit": "patient",
        "neighbours": NEIGHBOURS,
        "account": account,
        "budget": promise.epsilon,
        "spent": _up(spent),
        "spent_by_all_accounts": _up(together) if math.isfinite(together) else None,
        "ledger_entry": receipt.entry,
        "repeated": receipt.repeated,
        "ledger": "memory (generated patients)" if place.home is None else "the site's own",
    }


def _up(value: float) -> float:
    return math.ceil(value * 1e4 * (1 - 1e-12)) / 1e4
