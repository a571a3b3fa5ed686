"""What ``result.json`` holds, key by key: the types that runs write and pages read.

Plain dictionaries at run time, so that the file is exactly what was computed; `read` checks a file
against these types and says what is wrong with it. `FORMAT` rises when a reader of the old format
would misread the new one.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, cast

from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from suture.errors import RunError

FORMAT = 1

Metrics = dict[str, float | None]
"""A metric's name and its value; None where it is not defined, as recall without a positive."""
Intervals = dict[str, list[float]]
"""A metric's name, and the ends of its 95 % interval over seeds."""
Plain = JsonValue
"""Any value that JSON can hold: only for what a method says about itself in its own words."""


class Gaps(TypedDict):
    """How unequally the groups of one column are served."""

    column: NotRequired[str]
    parity_gap: float | None
    odds_gap: float | None
    opportunity_gap: float | None
    worst_accuracy: float | None
    worst_ece: NotRequired[float | None]
    worst_group: NotRequired[str | None]
    intervals: NotRequired[Intervals]
    groups: NotRequired[dict[str, Metrics]]
    withheld: NotRequired[str]
    """Why there are no figures."""


Part = TypedDict("Part", {"global": Metrics, "fairness": dict[str, Metrics]})
"""One model of a method that mixes several."""
Spread = TypedDict("Spread", {"global": Intervals, "sites": dict[str, Intervals]})
Measured = TypedDict(
    "Measured",
    {
        "global": Metrics,
        "sites": dict[str, Metrics],
        "groups": dict[str, dict[str, Metrics]],
        "mean_site": Metrics,
        "worst_site": dict[str, float | str | None],
        "fairness": NotRequired[dict[str, Gaps]],
        "group_thresholds": NotRequired[Gaps],
        "parts": NotRequired[dict[str, Part]],
        "intervals": NotRequired[Spread],
        "evaluation": NotRequired[dict[str, Any]],
    },
)
"""Every metric of one method: over all test patients, by site, by group, and who is served worst."""
SeedResult = TypedDict(
    "SeedResult",
    {
        "seed": int,
        "global": Metrics,
        "sites": NotRequired[dict[str, Metrics]],
        "parts": NotRequired[dict[str, Part]],
        "fairness": NotRequired[dict[str, Metrics]],
    },
)
RoundResult = TypedDict(
    "RoundResult",
    {
        "round": int,
        "global": Metrics,
        "intervals": NotRequired[Intervals],
        "sites": dict[str, Metrics],
        "fairness": NotRequired[dict[str, Metrics]],
        "groups": NotRequired[dict[str, dict[str, Metrics]]],
        "epsilon": NotRequired[float | None],
    },
)
"""The metrics after one round, and the epsilon spent by then where it was computed."""


class Statement(TypedDict):
    """The privacy statement: what is promised, to whom, at what cost, and what it does not cover."""

    protected: bool
    unit: str | None
    neighbours: str | None
    sampling: str | None
    accountant: str | None
    delta: float | None
    epsilon: float | None
    sites: dict[str, float | None]
    together: dict[str, float] | None
    charters: dict[str, Plain] | None
    noise_multiplier: dict[str, float | None]
    budget: float | None
    clip: float | None
    noise_source: str | None
    public: list[str]
    not_covered: list[str]
    statement: str
    patients: NotRequired[dict[str, int]]


class Communication(TypedDict):
    """Bytes over all sites and rounds, averaged over seeds."""

    bytes_up: int
    bytes_down: int
    rounds: int


class Roc(TypedDict):
    """Points of the receiver operating characteristic."""

    fpr: list[float]
    tpr: list[float]


class Reliability(TypedDict):
    """Predicted against observed risk, in bins of so many patients."""

    predicted: list[float]
    observed: list[float]
    count: list[int]


class Absence(TypedDict):
    """Rounds that a site was asked in and missed, and why the last time."""

    rounds: int
    why: NotRequired[str]


class MethodResult(TypedDict):
    """Everything about one method of a run."""

    label: str
    metrics: Measured
    per_seed: list[SeedResult]
    privacy: Statement
    communication: Communication
    history: list[RoundResult]
    roc: Roc
    calibration: Reliability
    rounds_planned: int
    rounds_done: int
    stopped: str | None
    dropouts: dict[str, Absence]
    facts: dict[str, Plain]
    protection: dict[str, Plain] | None
    seconds: float | None


class Signer(TypedDict):
    """Who at a site signed that its table is ready for the study, and when."""

    by: str
    when: str


class ReleaseTerms(TypedDict):
    """Whose patients a result is about, and whether it holds exact figures about them."""

    patients: Literal["generated", "simulation", "real"]
    exact: bool
    words: str


class SiteSummary(TypedDict):
    """One site's public size, and its exact counts where they may be shown."""

    region: str
    train: int
    patients: NotRequired[int]
    rows: NotRequired[int]
    test: NotRequired[int]
    prevalence: NotRequired[float]
    class_shares: NotRequired[list[float]]


class FeatureSummary(TypedDict):
    """Histograms and box plots of one feature, by site."""

    label: str
    unit: NotRequired[str]
    edges: NotRequired[list[float]]
    counts: dict[str, list[int]]
    box: NotRequired[dict[str, dict[str, float]]]


class CohortSummary(TypedDict):
    """The federation's sites and, where they may be shown, its features."""

    source: str
    sites: dict[str, SiteSummary]
    features: NotRequired[dict[str, FeatureSummary]]


class ModelSummary(TypedDict):
    """The network, what it takes in, and what rebuilds it."""

    kind: str
    classes: int | list[str]
    survival: NotRequired[dict[str, Plain]]
    scaling: str
    features: list[str]
    schema: dict[str, Plain]
    sizes: NotRequired[list[int]]
    activation: NotRequired[str]


class Reference(TypedDict):
    """A paper or a program to cite."""

    title: str
    authors: str
    year: int
    where: str


class Comparison(TypedDict):
    """Every other method against the leading one, on one metric, seed by seed."""

    against: str
    metric: str
    tests: dict[str, dict[str, Plain]]


class Record(TypedDict):
    """``result.json``."""

    suture: str
    format: int
    release: ReleaseTerms
    name: str
    outcome: str
    created: str
    seed: int
    seeds: list[int]
    command: str
    method: str
    metrics: Measured
    privacy: Statement
    communication: Communication
    history: list[RoundResult]
    methods: dict[str, MethodResult]
    cohort: CohortSummary
    model: ModelSummary
    study: dict[str, Plain]
    ready: NotRequired[dict[str, Signer | None]]
    """Of each site with real patients; None: nobody there checked the table before the run."""
    warnings: list[str]
    references: list[Reference]
    comparison: NotRequired[Comparison]
    profiles: NotRequired[dict[str, dict[str, Plain]]]


def read(plain: object, where: str) -> Record:
    """Check what a file holds; ``where`` names the file in an error."""
    found = plain.get("format") if isinstance(plain, dict) else None
    if found != FORMAT:
        raise RunError(
            f"{where}: expected format {FORMAT}, found {found!r}; it was written by another version "
            "of Suture, or is not a result"
        )
    try:
        TypeAdapter(Record).validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"{where}: {place}: {first['msg']}; the file was changed or is damaged"
        ) from None
    return cast(Record, plain)
