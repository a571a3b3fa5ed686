"""One question about one site's column, one noisy answer (``suture release``, docs/releases.md):
rates, histograms and quantiles.

Every statistic is a vector of counts to which one patient adds one unit, however many rows the
patient has, so the L2 sensitivity is 1 (a histogram of rows, with at most ``cap`` rows per patient,
has sensitivity ``cap``). Bins and bounds come from the public schema; the denominator of a rate is
the sum of two noisy counts. Everything else is computed from noisy counts alone.

The account is ``<study>/releases`` in the site's own ledger; its budget is fixed by the first
release. The event is known first, the ledger is charged and durable, and only then does the door add
noise. The charge depends on the study, the edition of the table and the question alone; the same
question has the same answer, from the ledger's file. Noise is the discrete Gaussian, sampled exactly
(``privacy/noise/mechanisms.py``), or the Gaussian in floating point (docs/floating-point.md).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy.special import ndtri

from suture.engine.federation import request, survey
from suture.errors import StudyError
from suture.privacy import door
from suture.privacy.accounting.accountant import epsilon as epsilon_of_event
from suture.privacy.accounting.planner import noise_for
from suture.privacy.canonical import digest
from suture.privacy.door import Rows
from suture.privacy.ledger.chain import Receipt
from suture.privacy.ledger.ledger import Budget, Ledger
from suture.privacy.noise.mechanisms import Counts
from suture.privacy.software import software
from suture.privacy.unit import NEIGHBOURS, Patients
from suture.protection.envelope import seal, unseal
from suture.schema.outcome import TWO, Classes, Positive
from suture.schema.table import Category, Feature, Flag, Number, Schema
from suture.site.gate import Place, admit, open_lifetime, place_of, secret_of
from suture.site.preprocess import MISSING, UNKNOWN, outcome_vocabulary
from suture.site.reading import Passage, Wanted, first_rows, read_columns
from suture.site.ready import charging
from suture.site.sources import Source
from suture.study import Study

log = logging.getLogger(__name__)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


# --- reading a column -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column; the rows of patient i are ``starts[i]:starts[i + 1]``."""

    name: str
    feature: Feature
    values: Floats  # NaN where missing; codes for categories, 0 and 1 for flags and the outcome
    starts: Integers


def read_each(
    source: Source,
    schema: Schema,
    outcome: str,
    columns: Sequence[str],
    *,
    site: str,
    passage: Passage | None = None,
    classes: Classes = TWO,
) -> list[Column]:
    """Read declared columns (features or the outcome), validated as for training, in one pass.

    Nothing is refused because of what the rows hold: a refusal would be a release of its own.
    Values that the schema does not declare count as missing and are noted in the site's own log.
    """
    for column in columns:
        if column != outcome and column not in schema.features:
            known = ", ".join([outcome, *schema.features])
            raise StudyError(
                f"column {column!r} is not declared in the study, so it has no public bounds; "
                f"declared columns: {known}"
            )
        if schema.patient is None:
            raise StudyError(
                "a release protects patients, so the schema must name the patient column: "
                'set schema.patient = "..."'
            )
        if column == schema.image:
            raise StudyError(f"column {column!r} is an image; ask for the outcome instead")
    chosen = [name for name in columns if name in schema.features] or [next(iter(schema.features))]
    features = {name: schema.features[name] for name in chosen}
    narrow = schema.model_copy(update={"features": features, "groups": (), "protected": None})
    wanted = Wanted(narrow, outcome, outcome_vocabulary(classes), 0.0, "releases")
    read = read_columns(source, wanted, site, passage)
    for problem in passage.problems if passage else ():
        log.info("site %r: %s", site, problem)
    if read.no_patient:
        log.info("site %r: %d rows without a patient identifier left out", site, read.no_patient)
    found = []
    for column in columns:
        declared = column in schema.features
        feature: Feature = schema.features[column] if declared else Flag()
        raw = read.features[column] if declared else read.outcome
        values = raw.astype(np.float64)
        wrong = np.isinf(values) if isinstance(feature, Number) else raw == UNKNOWN
        if wrong.any():
            count = np.count_nonzero(wrong)
            log.info("site %r, %r: %d undeclared values count as missing", site, column, count)
        absent = wrong if isinstance(feature, Number) else wrong | (raw == MISSING)
        # Kept far from the largest float: a patient's sum must not overflow, nor warn of it.
        values = np.clip(np.where(absent, np.nan, values), -1e150, 1e150)
        # The order of rows in the file must not matter.
        order = np.lexsort((values, read.keys[:, 1], read.keys[:, 0]))
        starts = np.append(first_rows(read.keys[order]), len(values)).astype(np.int64)
        found.append(Column(column, feature, values[order], starts))
    return found


# --- counting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """The cells that each patient's rows are counted in, numbered from 0; -1 means nowhere.

    ``sensitivity`` bounds the L2 norm of one patient's units; ``contribution`` says it in words.
    """

    cells: Integers
    starts: Integers
    labels: tuple[str, ...]
    sensitivity: float
    contribution: str

    def table(self) -> Patients:
        """The cells as rows grouped by patient, as the door takes them."""
        x = self.cells.astype(np.float32)  # exact up to 2^24 cells
        return Patients(x, np.zeros(len(x), np.int32), self.starts)

    def each(self, block: Patients) -> Rows:
        """One unit in every cell of a row."""
        values = np.zeros((block.rows, len(self.labels)), np.float32)
        for column in block.x.astype(np.int64).T:
            at = np.flatnonzero(column >= 0)
            values[at, column[at]] += 1.0
        return values, np.ones(block.rows)


def rate_counts(column: Column, above: float | None = None) -> Tally:
    """Count patients with the event in any row, and without; who has no value counts nowhere."""
    if isinstance(column.feature, Number):
        if above is None:
            raise StudyError(
                f"column {column.name!r} is a number: state which values are events, such as "
                "--above 140"
            )
        happened = column.values > above
    elif isinstance(column.feature, Category) or above is not None:
        raise StudyError(
            "a rate needs a flag, the outcome, or a number with --above; for other columns ask for "
            "a histogram"
        )
    else:
        happened = column.values == 1
    events = np.maximum.reduceat(happened, column.starts[:-1])
    known = np.maximum.reduceat(~np.isnan(column.values), column.starts[:-1])
    cells = np.where(known, np.where(events, 0, 1), -1)
    words = "each patient counts once: with the event when any row has it"
    return Tally(cells[:, None], np.arange(len(cells) + 1), ("with the event", "without"), 1, words)


def bin_edges(feature: Feature, bins: int) -> Floats:
    """The public edges of a number's bins."""
    if not isinstance(feature, Number):
        raise StudyError("only a number has bins; a category or a flag has its declared values")
    if not 2 <= bins <= 4096:
        raise StudyError(f"expected 2 to 4,096 bins, found {bins}")
    return np.linspace(feature.low, feature.high, bins + 1)


def histogram_counts(column: Column, bins: int = 10, cap: int | None = None) -> Tally:
    """Count patients by bin: a number by the mean of the patient's rows, others by the patient's
    most common value. With ``cap``, count rows, at most ``cap`` per patient.
    """
    feature, sizes = column.feature, np.diff(column.starts)
    labels = feature.values if isinstance(feature, Category) else ("no", "yes")
    if isinstance(feature, Number):
        edges = bin_edges(feature, bins)
        labels = tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges))
    if cap is not None:
        if not 1 <= cap <= 1000:
            raise StudyError(f"expected a cap of 1 to 1,000 rows per patient, found {cap}")
        kept = np.arange(len(column.values)) - np.repeat(column.starts[:-1], sizes) < cap
        chosen, sizes = column.values[kept], np.minimum(sizes, cap)
        words = f"at most {cap} rows of each patient count, one unit each"
    elif isinstance(feature, Number):
        chosen, sizes = _means(column), np.ones_like(sizes)
        words = "each patient counts once, in the bin of the mean of their rows"
    else:
        chosen, sizes = _most_common(column, len(labels)), np.ones_like(sizes)
        words = "each patient counts once, under their most common value"
    known = np.where(np.isnan(chosen), 0.0, chosen)
    if isinstance(feature, Number):
        inside = np.clip(known, feature.low, feature.high)
        index = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, bins - 1)
    else:
        index = known.astype(np.int64)
    cells = np.where(np.isnan(chosen), -1, index)
    return Tally(cells[:, None], np.append(0, np.cumsum(sizes)), labels, cap or 1, words)


def joint_histograms(columns: Sequence[Column], bins: int) -> Tally:
    """Histograms of several numbers as one release: a patient adds at most one unit to each.

    Each of m histograms moves in one bin by at most one, so the L2 sensitivity of all of them
    together is sqrt(m).
    """
    parts = [histogram_counts(column, bins) for column in columns]
    named = zip(columns, parts, strict=True)
    labels = tuple(f"{column.name}: {label}" for column, part in named for label in part.labels)
    words = (
        f"each patient counts once in each of {len(parts)} histograms, in the bin of the mean of "
        "their rows"
    )
    cells = [np.where(part.cells < 0, -1, part.cells + i * bins) for i, part in enumerate(parts)]
    return Tally(np.hstack(cells), parts[0].starts, labels, math.sqrt(len(parts)), words)


def _means(column: Column) -> Floats:
    known = ~np.isnan(column.values)
    total = np.add.reduceat(np.where(known, column.values, 0.0), column.starts[:-1])
    rows = np.add.reduceat(known.astype(np.float64), column.starts[:-1])
    means: Floats = np.divide(total, rows, out=np.full(len(rows), np.nan), where=rows > 0)
    return means


def _most_common(column: Column, size: int) -> Floats:
    """The most frequent code of each patient; among equals, the one declared first."""
    patients = len(column.starts) - 1
    owner = np.repeat(np.arange(patients), np.diff(column.starts))
    known = ~np.isnan(column.values)
    table = np.zeros((patients, size), np.int32)
    np.add.at(table, (owner[known], column.values[known].astype(np.int64)), 1)
    return np.where(table.any(axis=1), table.argmax(axis=1).astype(np.float64), np.nan)


# --- what noisy counts say --------------------------------------------------------------------------------------------

Z95 = float(ndtri(0.975))


class Bin(TypedDict):
    """One bin of a histogram."""

    bin: str
    count: float
    noisy_count: float
    interval: list[float]
    share: float | None


class Quantile(TypedDict):
    """One quantile of a number."""

    quantile: float
    value: float | None
    interval: list[float]
    level: float


class Figures(TypedDict, total=False):
    """What noisy counts say: a rate, bins or quantiles, with 95 % intervals."""

    rate: float | None  # None where the denominator is nearly all noise
    interval: list[float]
    level: float
    interval_with_sampling: list[float]
    events: float
    patients: float
    bins: list[Bin]
    quantiles: list[Quantile]
    plot: str  # the file that they were drawn to


def rate(events: float, others: float, sd: float) -> Figures:
    """The rate from noisy counts of patients with and without the event.

    Fieller's interval: r is kept when events (1 - r) - others r is within z standard deviations of
    0. It holds at any size, also where the denominator is nearly all noise (then it is 0 to 1).
    """
    total = events + others
    share = min(1.0, max(0.0, events / total)) if total > 0 else None
    # (events - r total)^2 <= z^2 sd^2 ((1 - r)^2 + r^2), a quadratic in r
    slack = (Z95 * sd) ** 2
    a, b, c = total**2 - 2 * slack, -2 * (events * total - slack), events**2 - slack
    interval, sampled = [0.0, 1.0], [0.0, 1.0]
    if a > 0 and b * b - 4 * a * c >= 0:
        root = math.sqrt(b * b - 4 * a * c)
        interval = [max(0.0, (-b - root) / (2 * a)), min(1.0, (-b + root) / (2 * a))]
    if share is not None and total > Z95 * sd:
        noise = (sd**2 * ((1 - share) ** 2 + share**2)) / total**2
        spread = Z95 * math.sqrt(noise + max(share, 1 / total) / total)
        sampled = [max(0.0, share - spread), min(1.0, share + spread)]
    return {
        "rate": share,
        "interval": interval,
        "level": 0.95,
        "interval_with_sampling": sampled,
        "events": max(0.0, events),
        "patients": max(0.0, total),
    }


def shares(counts: Floats, labels: Sequence[str], sd: float) -> list[Bin]:
    """Each bin's noisy count, interval and share; negative counts are shown as 0."""
    shown = np.maximum(np.asarray(counts, np.float64), 0.0)
    total = float(shown.sum())
    return [
        {
            "bin": label,
            "count": float(count),
            "noisy_count": float(noisy),
            "interval": [max(0.0, float(noisy) - Z95 * sd), max(0.0, float(noisy) + Z95 * sd)],
            "share": float(count) / total if total > 0 else None,
        }
        for label, count, noisy in zip(labels, shown, counts, strict=True)
    ]


def quantiles(counts: Floats, edges: Floats, at: Sequence[float], sd: float) -> list[Quantile]:
    """Quantiles from a noisy histogram, with intervals that hold the exact quantile's bin."""
    cumulative = np.concatenate(([0.0], np.cumsum(np.asarray(counts, np.float64))))
    total, bins = float(cumulative[-1]), len(counts)
    # The true cumulative counts never fall: take the mean of the least increasing curve above and
    # the greatest below.
    rising = (np.maximum.accumulate(cumulative) + np.minimum.accumulate(cumulative[::-1])[::-1]) / 2
    enough = total > Z95 * sd * math.sqrt(bins)
    k = np.arange(bins + 1)
    found: list[Quantile] = []
    for q in at:
        excess = cumulative - q * total
        reach = Z95 * sd * np.sqrt((1 - q) ** 2 * k + q**2 * (bins - k))
        not_below, not_above = np.flatnonzero(excess >= -reach), np.flatnonzero(excess <= reach)
        low = edges[max(0, int(not_below[0]) - 1)] if len(not_below) else edges[0]
        high = edges[min(bins, int(not_above[-1]) + 1)] if len(not_above) else edges[-1]
        value = float(np.interp(q * total, rising, edges)) if enough else None
        interval = [float(low), float(high)]
        found.append({"quantile": q, "value": value, "interval": interval, "level": 0.95})
    return found


# --- one question, one noisy answer -----------------------------------------------------------------------------------

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
    """A study's account of releases at one site, after the gate has admitted the study."""

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
        texts = study.target.texts if study.target else TWO
        classes = texts if isinstance(texts.written, Positive) else TWO
        (read,) = read_each(
            place.source, schema, study.column, [column], site=site, passage=passage,
            classes=classes,
        )  # fmt: skip
        tally = question.count(read)
        multiplier = noise_for(epsilon, promise.delta, 1.0, 1, promise.accountant)
        above, bins, cap = question.above, question.size, question.cap
        what = f"{kind} of {column!r}, above={above!r}, bins={bins}, cap={cap!r}"
        about = (kind, column, above, bins, cap)
        noisy = account.release(tally, counting(tally, multiplier, mechanism), about, what)
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
    """Ready, ledger, gate and budget of a site's releases, before any row is read."""
    if study.simulation:
        raise StudyError(
            "simulation = true: nothing of a simulation is released; remove it from [study], and "
            "declare patients = ... in every [[site]]"
        )
    secret, name = secret_of(place, study.seed), f"{study.name}/releases"
    with closing(charging(place, None, study.digest)) as ledger:
        promise = _budget(study, ledger, name, delta, budget)
        passage = None
        if place.home is not None:
            asked = request(study, schema, place.name)
            asked = replace(asked, unit="patient", epsilon=promise.epsilon, delta=promise.delta)
            asked = replace(asked, masked=False)  # a release is one site's own
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
