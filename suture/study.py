"""What a study file may say, table by table: frozen, validated settings with their defaults.
`study.py` puts them together.

The study: question, sites, method, promise and evaluation, as frozen, validated objects. TOML in,
TOML out.

A `Study` is what is promised. How it runs (threads, output folder, progress) are arguments of
`suture.run` and can never change a privacy figure or a number in the result.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from suture.errors import StudyError
from suture.methods import registry
from suture.methods.registry import MethodSpec
from suture.models.network import KINDS
from suture.privacy.canonical import json_text
from suture.protection.terms import ProtectionSpec
from suture.schema.outcome import TWO, Classes, Outcome, Positive, Survival
from suture.schema.table import EXAMPLES, Schema
from suture.site.sources import ConsentSpec, SourceSpec

if TYPE_CHECKING:
    from suture.methods.declared import Public

FROZEN = ConfigDict(frozen=True, extra="forbid")
Predicted = Annotated[
    Annotated[str, Tag("column")] | Annotated[Survival, Tag("survival")],
    Discriminator(lambda given: "column" if isinstance(given, str) else "survival"),
]
"""A column of classes, or follow-up until an event."""
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^/\\\x00-\x1f]+$")]


class LifetimeSpec(BaseModel):
    """A site's budget over all studies, for as long as its ledger lives; a site that states none
    has the defaults."""

    model_config = FROZEN

    epsilon: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-4, gt=0, lt=1)
    accountant: Literal["pld", "rdp"] = "pld"


class Site(BaseModel):
    """One hospital: its name, region and where its rows are (read at the site only)."""

    model_config = FROZEN

    name: Name
    data: SourceSpec | None = None
    """None: only the site itself knows, as in a federation across machines (docs/federation.md)."""
    region: str = ""
    patients: int | None = Field(default=None, ge=1)
    """Declared, public and round: about how many patients train here. Noise, steps and weights are
    planned with it, and the table is not counted, so that one patient more or less runs the same
    mechanism. A wrong figure costs utility only."""
    edition: int = Field(default=1, ge=1)
    """Raised by a person when the table's rows are new, so that the same question may be asked, and
    paid for, again."""
    test: SourceSpec | None = None
    """A separate test table; without it ``evaluation.holdout`` decides."""
    home: str | None = None
    """Folder of the site's ledger and secret; by default ``.suture/<name>`` beside the study
    file."""
    charter: str | None = None
    """The site's signed charter; by default ``charter.toml`` in its home, if there is one."""
    trust: str | None = None
    """The public keys the site trusts to sign charters, where its home has no ``trust.pub`` of its
    own."""
    consent: ConsentSpec | None = None
    """The table of who consents to which study."""
    lifetime: LifetimeSpec | None = None
    """What all studies together may spend on the site's patients; recorded in its ledger, once.
    None: the defaults."""


class CohortSpec(BaseModel):
    """A built-in federation by name, with its options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    def options(self) -> dict[str, Any]:
        """The options given beside the name."""
        return dict(self.model_extra or {})


class ImagesSpec(BaseModel):
    """How a site's image files are read; see docs/imaging.md."""

    model_config = FROZEN

    size: int = Field(default=64, ge=8, le=1024)
    """Pixels along each side, after resampling."""
    folder: str = ""
    """Where the names in the table begin, seen from the table's own folder."""
    broken: Literal["refuse", "skip"] = "refuse"
    """What happens to a file that cannot be used."""


class ModelSpec(BaseModel):
    """A dense network, where ``hidden = []`` is logistic regression, or for images a residual one
    or a linear model of wavelet scattering."""

    model_config = FROZEN

    kind: Literal["dense", "residual", "scattering"] = "dense"
    depth: int = Field(default=8, ge=1)
    """Layers of a residual network: 8, 10, 18, 20 or 34."""
    width: int = Field(default=8, ge=1)
    """Channels of a residual network's first stage; 64 for the published ResNet-18 and
    ResNet-34."""
    weights: str | None = None
    """A local file of public weights to start a residual network from: torchvision's ImageNet
    weights, or an NPZ file."""
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = (64, 32)
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of inputs and hidden units left out at random in each training row."""
    scaling: Literal["bounds", "site"] = "bounds"
    """Numbers by their declared bounds, or standardised at each site with its own means (fitted:
    not under privacy)."""


class PrivacySpec(BaseModel):
    """The promise, stated before any row is read. No ``[privacy]`` table means no differential
    privacy."""

    model_config = FROZEN

    unit: Literal["patient"]
    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["pld", "rdp"] = "pld"
    clip: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _one_figure_at_least(self) -> PrivacySpec:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(
                "give epsilon (noise is then calibrated per hospital), noise_multiplier, or both"
            )
        return self


class EvaluationSpec(BaseModel):
    """How results are measured."""

    model_config = FROZEN

    holdout: float = Field(default=0.2, ge=0, lt=1)
    folds: int = Field(default=0, ge=0)
    """0 holds out patients; 2 or more hold out whole hospitals, each once."""
    seeds: int = Field(default=1, ge=1)
    threshold: float = Field(default=0.5, gt=0, lt=1)
    compare: tuple[str, ...] = ()
    """Other methods to run beside ``method.name``, with the same settings."""
    metric: str = "auc"
    every: int = Field(default=1, ge=1)
    """Test patients are scored after every so many rounds, and after the last; the history has
    these rounds only."""
    group_thresholds: bool = False
    """Measure also with thresholds for each protected group, which every site fits for itself and
    keeps."""
    epsilon: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """On real patients: what of ``privacy.epsilon`` pays for one noisy evaluation of the model. By
    default a quarter of it; with 0 nothing about test patients leaves."""
    describe: bool | None = None
    """Whether the report shows exact histograms of the rows. Default: only for generated patients,
    or without DP."""


class FederationSpec(BaseModel):
    """What a round needs when sites may be missing. The embedded engine's sites are missing only
    without budget."""

    model_config = FROZEN

    minimum_sites: int | None = Field(default=None, ge=1)
    """A round with fewer answers ends the run; by default every site that is asked must answer."""
    deadline: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds in which a site must answer a request."""
    gathering: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for all sites to connect before the first round."""


def explain(error: ValidationError) -> str:
    """Pydantic's findings as one line each: where, what was expected, what was found."""
    lines = []
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"]]
        if "features" in parts[:-2] and parts[at := parts.index("features") + 2] in EXAMPLES:
            del parts[at]  # the kind that pydantic tried, which is no level of the file
        place = ".".join(parts)
        missing = problem["type"] == "missing"
        text = "is missing" if missing else problem["msg"].removeprefix("Value error, ")
        found = problem.get("input")
        shown = (
            f", found {found!r}" if isinstance(found, str | int | float | bool) and place else ""
        )
        hint = "; it is not a setting here" if problem["type"] == "extra_forbidden" else ""
        lines.append(f"{place}: {text}{shown}{hint}" if place else text)
    return "; ".join(lines)


HEAD = (
    "name",
    "outcome",
    "positive",
    "classes",
    "seed",
    "simulation",
    "link_people",
    "overlap",
    "cohort",
)
"""What the [study] table may say."""


class Study(BaseModel):
    """Everything that is promised about one study.

    >>> study = Study(name="demo", outcome="high_risk", cohort="cardio", method={"name": "fedavg", "rounds": 3})
    >>> study.method.rounds, study.private
    (3, False)
    """

    model_config = FROZEN

    name: Name
    outcome: Predicted
    positive: str | None = Field(default=None, min_length=1)
    """The text of the outcome that counts as 1; every other text that is not missing counts as
    0."""
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Labels of an outcome with more than two classes, in order; for a built-in cohort the cohort
    knows."""
    seed: int = Field(default=42, ge=0)
    simulation: bool = False
    """Research on tables that whoever runs it holds: a ledger and a budget for each run, counted
    sizes, no network."""
    link_people: bool = False
    """A person who attends several hospitals takes part at one of them; on one machine only."""
    overlap: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """The epsilon that `suture overlap` may cost sites that are elsewhere."""
    cohort: CohortSpec | None = None
    sites: tuple[Site, ...] = ()
    table: Schema | None = Field(default=None, alias="schema")
    images: ImagesSpec | None = None
    model: ModelSpec = ModelSpec()
    method: MethodSpec = MethodSpec()
    privacy: PrivacySpec | None = None
    evaluation: EvaluationSpec = EvaluationSpec()
    protection: ProtectionSpec = ProtectionSpec()
    federation: FederationSpec = FederationSpec()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise StudyError(explain(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _short_cohort(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and isinstance(fields.get("cohort"), str):
            fields = {**fields, "cohort": {"name": fields["cohort"]}}
        return fields

    @model_validator(mode="after")
    def _recommended(self) -> Study:
        """A study that asks for the recommended method *is* the study of that method: what a site
        pins and a charter approves says which one, with which settings."""
        if self.method.name == registry.RECOMMENDED:
            object.__setattr__(self, "method", registry.recommend(self.method, self.facts()))
        return self

    def facts(self) -> Public:
        """What is public about the federation before anybody is asked."""
        from suture import cohorts
        from suture.methods.declared import Public

        schema, sites = self.table, {site.name: site.patients for site in self.sites}
        target = self.target or TWO
        if self.cohort is not None:
            built = cohorts.load(self.cohort.name, self.seed, **self.cohort.options())
            kept = 1 - self.evaluation.holdout
            sites = {name: int(kept * n) for name, n in built.sizes.items()}
            schema = schema or built.schema
            target = self.target or Classes(written=built.classes)
        sizes = {name: size for name, size in sites.items() if size is not None}
        known = len(sizes) == len(sites)
        return Public(
            schema,
            len(sites),
            sum(sizes.values()) if known else Public.patients,
            sizes if known else {},
            outcome=target,
            epsilon=self.privacy.epsilon if self.privacy else None,
            masked=self.protection.sum == "masked",
            images=schema is not None and schema.image is not None,
            featured=KINDS[self.model.kind].featured,
            scaling=self.model.scaling,
            delta=self.privacy.delta if self.privacy else Public.delta,
            honest=self.protection.honest_of(len(sites)),
        )

    @model_validator(mode="after")
    def _settings(self) -> Study:
        """Every setting of the study's methods is stated; a method that nobody knows yet may be
        brought along by whoever runs the study."""
        if registry.found(self.methods):
            object.__setattr__(self, "method", registry.completed(self.method, self.methods))
        return self

    @model_validator(mode="after")
    def _sized(self) -> Study:
        """The size is said once, in [images]; the schema, from which every model's width follows,
        takes it over."""
        if self.table is None or self.table.image is None:
            if self.images is not None and self.cohort is None:
                raise ValueError(
                    "[images] needs a column of images: in [schema.features], image = { kind = "
                    '"image" }'
                )
            return self
        column, feature = self.table.image, self.table.features[self.table.image]
        given = (
            "size" in feature.model_fields_set
            and self.images is not None
            and "size" in self.images.model_fields_set
        )
        if self.images is not None and given and self.table.image_size != self.images.size:
            raise ValueError(
                f"images.size is {self.images.size} and schema.features.{column}.size is "
                f"{self.table.image_size}; say it once"
            )
        size = (
            self.images.size
            if self.images and "size" in self.images.model_fields_set
            else self.table.image_size
        )
        sized = self.table.model_copy(
            update={"features": {column: feature.model_copy(update={"size": size})}}
        )
        object.__setattr__(self, "table", sized)
        object.__setattr__(
            self, "images", (self.images or ImagesSpec()).model_copy(update={"size": size})
        )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if (self.cohort is None) == (not self.sites):
            raise ValueError(
                'give either cohort = "cardio" under [study], or [[site]] tables, and not both'
            )
        if self.sites:
            if self.table is None:
                raise ValueError(
                    "[[site]] tables need a [schema] that declares the patient column and the "
                    "features"
                )
            if not self.table.features:
                raise ValueError("[schema.features] declares no feature")
            for column in (self.column, *([self.survival.time] if self.survival else [])):
                if column in self.table.features:
                    raise ValueError(f"the outcome {column!r} is also listed as a feature")
            if self.privacy and not self.table.patient:
                raise ValueError(
                    'privacy.unit = "patient" needs schema.patient = "<column that identifies the '
                    'patient>"'
                )
            unsized = [site.name for site in self.sites if site.patients is None]
            if self.privacy and not self.simulation and unsized:
                raise ValueError(
                    f"site {unsized[0]!r} declares no size: under [privacy] noise is planned with "
                    "a public, round number of "
                    "training patients that a person states, never with a count of the rows. Write "
                    "patients = 1000 (about as "
                    "many as train there) in its [[site]], or, for research on tables of your own "
                    "that nothing is released "
                    "from, simulation = true in [study]"
                )
            names = [site.name.casefold() for site in self.sites]
            twice = sorted(
                {site.name for site in self.sites if names.count(site.name.casefold()) > 1}
            )
            if twice:
                raise ValueError(
                    "site names must differ (upper and lower case count as equal), found twice: "
                    f"{twice}"
                )
        if self.evaluation.folds == 1:
            raise ValueError(
                "evaluation.folds: expected 0 (hold out patients) or 2 and more (hold out "
                "hospitals), found 1"
            )
        if self.classes and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError(
                f"study.classes needs two or more different labels, found {list(self.classes)}"
            )
        if self.link_people and (
            not self.sites
            or any(site.data is None for site in self.sites)
            or self.table is None
            or self.table.patient is None
        ):
            raise ValueError(
                "study.link_people compares people across tables on one machine: it needs data = "
                "... for every [[site]] and schema.patient, and there is no network for it"
            )
        if self.survival is not None:
            self._no_classes()
        if self.positive is not None and (self.classes or self.cohort):
            raise ValueError(
                f"study.positive = {self.positive!r} tells one text of a table from all others; it "
                "goes with [[site]] tables and without study.classes"
            )
        weights, count = self.method.class_weights, len(self.classes) or 2
        if isinstance(weights, tuple) and self.sites and len(weights) != count:
            raise ValueError(
                f"method.class_weights needs one weight a class ({count}), found {len(weights)}"
            )
        if self.privacy:
            self._nothing_fitted()
            whole, part = self.privacy.epsilon, self.evaluation.epsilon
            if whole is not None and part is not None and part >= whole:
                raise ValueError(
                    f"evaluation.epsilon is part of privacy.epsilon ({whole:g}) and must be smaller, "
                    f"found {part:g}; leave it out for a quarter"
                )
        elif (self.method.model_extra or {}).get("candidates"):
            raise ValueError(
                "method.candidates need [privacy]: without noise the best one on the training "
                "patients is the one that overfits them most"
            )
        return self

    def _no_classes(self) -> None:
        """An outcome with follow-up has no classes; its metric is the C-index."""
        given = ("positive", self.positive), ("classes", self.classes)
        for name, value in (*given, ("method.class_weights", self.method.class_weights)):
            if value:
                raise ValueError(
                    f"{name} goes with an outcome of classes; an outcome with follow-up has none "
                    '(with causes: outcome = { time = ..., event = "end", cause = "stroke", ... })'
                )
        if "metric" not in self.evaluation.model_fields_set:
            tested = self.evaluation.model_copy(update={"metric": "c_index"})
            object.__setattr__(self, "evaluation", tested)

    def _nothing_fitted(self) -> None:
        """Whatever is computed from rows without noise would leave the site inside the model,
        unpaid for."""
        if self.model.scaling == "site":
            raise ValueError(
                'model.scaling = "site" fits means to patients, which no budget pays for; under '
                '[privacy] use "bounds"'
            )
        if isinstance(self.method.class_weights, str):
            raise ValueError(
                f'method.class_weights = "{self.method.class_weights}" counts patients by outcome, '
                "which no budget pays "
                "for; under [privacy] state the weights, for example class_weights = [1.0, 4.0]"
            )

    @property
    def evaluation_epsilon(self) -> float:
        """What of ``privacy.epsilon`` pays for the evaluation of each method's model on real
        patients: a quarter, unless the study says otherwise; 0: there is none."""
        tested = self.evaluation.holdout or self.evaluation.folds
        if self.privacy is None or not (tested or any(site.test for site in self.sites)):
            return 0.0
        stated = self.evaluation.epsilon
        return (self.privacy.epsilon or 0.0) / 4 if stated is None else stated

    @property
    def private(self) -> bool:
        """Whether the study promises differential privacy."""
        return self.privacy is not None

    def declared(self, site: str) -> int | None:
        """The number of training patients that a site declares; None: it declares none, or its
        patients are built in."""
        return next((known.patients for known in self.sites if known.name == site), None)

    @property
    def target(self) -> Outcome | None:
        """What is predicted; None: 0/1 or yes/no, or as a built-in cohort says."""
        if isinstance(self.outcome, Survival):
            return self.outcome
        written = self.classes or (self.positive and Positive(text=self.positive))
        return Classes(written=written) if written else None

    @property
    def survival(self) -> Survival | None:
        """The outcome, where it is the time until an event."""
        return self.outcome if isinstance(self.outcome, Survival) else None

    @property
    def column(self) -> str:
        """The outcome's own column: classes, or whether there was an event."""
        return self.outcome.event if isinstance(self.outcome, Survival) else self.outcome

    @property
    def asked(self) -> str:
        """The outcome for people and charters."""
        return self.outcome.name if isinstance(self.outcome, Survival) else self.outcome

    @property
    def methods(self) -> tuple[str, ...]:
        """The study's method, then the ones it is compared with, each once."""
        return tuple(dict.fromkeys((self.method.name, *self.evaluation.compare)))

    def replace(self, **changes: Any) -> Study:
        """A copy with some settings changed; tables may be given in part.

        >>> study = Study(name="demo", outcome="high_risk", cohort="cardio")
        >>> study.replace(method={"name": "fedavg"}).method.name
        'fedavg'
        """
        fields = self.to_dict()
        for key, value in changes.items():
            given = (
                value.model_dump(by_alias=True, exclude_none=True)
                if isinstance(value, BaseModel)
                else value
            )
            old = fields.get(key)
            fields[key] = (
                {**old, **given} if isinstance(given, dict) and isinstance(old, dict) else given
            )
        names = (fields["method"]["name"], *fields["evaluation"].get("compare", ()))
        if registry.found(names):
            given = changes.get("method", {})
            stated = given.model_dump() if isinstance(given, BaseModel) else given
            fields["method"] = registry.kept(fields["method"], names, stated)
        return Study(**{key: value for key, value in fields.items() if value is not None})

    def without_passwords(self) -> Study:
        """The same study with no database password in it: this is what run folders and results
        hold."""
        return self._with_sources(lambda _, source: source.without_password())

    def with_passwords_of(self, other: Study) -> Study:
        """Passwords taken back from another reading of the same file, site by site."""
        known = {site.name: site for site in other.sites}

        def fill(site: Site, source: SourceSpec) -> SourceSpec:
            if site.name not in known:
                return source
            candidates = (known[site.name].data, known[site.name].test, known[site.name].consent)
            return next(
                (c for c in candidates if c is not None and c.without_password() == source), source
            )

        return self._with_sources(fill)

    def public(self) -> Study:
        """The study as it is sent to sites: where anybody's rows, ledgers and papers are is left
        out.

        >>> Study(name="s", outcome="y", sites=[{"name": "a", "data": "a.csv"}, {"name": "b"}],
        ...     schema={"features": {"x": {"kind": "flag"}}}).public().sites[0]
        Site(name='a', data=None, region='', patients=None, edition=1, test=None, home=None, charter=None, trust=None, \
consent=None, lifetime=None)
        """
        bare = dict.fromkeys(("data", "test", "home", "charter", "trust", "consent", "lifetime"))
        return self.model_copy(
            update={"sites": tuple(site.model_copy(update=bare) for site in self.sites)}
        )

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that name exactly this study: what a charter approves and a site
        accepts.

        SHA-256 of the canonical JSON of the public study, defaults included, so that comments, the
        order of keys and the spelling of numbers change nothing, and any setting does. The order of
        features counts, because it is the order of the model's inputs. Left out: where rows and
        ledgers are (`public`), and [federation], which only says how long to wait for whom.

        >>> study = Study(name="demo", outcome="high_risk", cohort="cardio")
        >>> study.digest == study.replace(federation={"deadline": 5.0}).digest, study.digest == study.replace(seed=1).digest
        (True, False)
        """
        return self._named()

    @property
    def table_digest(self) -> str:
        """Names what a site's table is checked against: name, sites, columns, outcome and seed,
        whatever is then trained on it and promised."""
        return self._named("method", "model", "privacy", "evaluation", "protection")

    def _named(self, *but: str) -> str:
        fields = self.public().model_dump(mode="python", by_alias=True, exclude={"federation"})
        fields["method"] = registry.defaults() | fields["method"]
        for younger in ("link_people", "overlap"):  # the first studies' names stay as they are
            if not fields[younger]:
                del fields[younger]
        if self.table is not None:
            rule = sorted((condition.plain() for condition in self.table.include), key=json_text)
            features = list(fields["schema"]["features"].items())
            fields["schema"] |= {"include": rule, "features": features}
        fields = {key: value for key, value in fields.items() if key not in but}
        text = json_text({"suture study": 1, **_finite(fields)})
        return hashlib.sha256(text.encode()).hexdigest()

    def _with_sources(self, change: Callable[[Site, SourceSpec], SourceSpec]) -> Study:
        sites = tuple(
            site.model_copy(
                update={
                    "data": site.data and change(site, site.data),
                    "test": site.test and change(site, site.test),
                    "consent": site.consent and change(site, site.consent),
                },
            )
            for site in self.sites
        )
        return self.model_copy(update={"sites": sites})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, defaults included."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        if self.table is not None and self.table.image is not None:
            del fields["schema"]["features"][self.table.image]["size"]  # [images] says it
        return fields

    @classmethod
    def from_toml(cls, path: str | Path) -> Study:
        """Read a study file; paths inside are relative to it (see `Study.base`)."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise StudyError(
                f"study file {path} does not exist; `suture init` writes an example"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise StudyError(f"study file {path} cannot be read: {error}") from None
        try:
            return cls.from_text(text)
        except StudyError as error:
            raise StudyError(f"{path}: {error}") from None

    @classmethod
    def from_text(cls, text: str) -> Study:
        """Read a study from TOML text."""
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(f"not valid TOML: {error}") from None
        known = {
            "study",
            "site",
            "schema",
            "images",
            "model",
            "method",
            "privacy",
            "protection",
            "evaluation",
            "federation",
        }
        strange = sorted(set(tables) - known)
        if strange:
            raise StudyError(f"unknown table {strange[0]!r}; expected {', '.join(sorted(known))}")
        if not isinstance(tables.get("study"), dict):
            raise StudyError('a [study] table is needed, with name = "..." and outcome = "..."')
        head = tables.pop("study")
        inside = sorted(set(head) - set(HEAD))
        if inside:
            raise StudyError(
                f"[study] has an unknown key {inside[0]!r}; expected {', '.join(HEAD)}"
            )
        if "site" in tables:
            tables["sites"] = tables.pop("site")
        return cls(**head, **tables)

    def to_toml(self) -> str:
        """The study as a file that `from_toml` reads back to an equal study."""
        fields = self.to_dict()
        sites = [
            {
                key: _short(value) if key in ("data", "test") else value
                for key, value in site.items()
            }
            for site in fields.pop("sites", [])
        ]
        head: dict[str, Any] = {key: fields.pop(key) for key in HEAD if key in fields}
        schema = fields.pop("schema", None)
        lines = _table("study", head)
        for site in sites:
            lines += _table("site", site, "[[{}]]")
        if schema:
            features = schema.pop("features", {})
            lines += _table("schema", schema)
            lines += _table("schema.features", features)
        for key in (
            "images",
            "model",
            "method",
            "privacy",
            "protection",
            "evaluation",
            "federation",
        ):
            if key in fields:
                lines += _table(key, fields[key])
        return "\n".join(lines).strip() + "\n"


def _finite(value: Any) -> Any:
    """The same plain values with infinities as text: canonical JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _short(source: dict[str, Any]) -> Any:
    """A source as a person would write it: what is said by default is left out."""
    told = SourceSpec(**source).model_dump(mode="json", exclude_defaults=True)
    return told["path"] if set(told) == {"path"} else told


# Written by hand: tomli-w writes short sites as one inline array before [study], to which nobody can
# add a [[site]], and spreads a feature's line over a table.
def _table(name: str, values: dict[str, Any], heading: str = "[{}]") -> list[str]:
    return [
        heading.format(name),
        *(f"{toml_key(key)} = {toml_value(value)}" for key, value in values.items()),
        "",
    ]


def toml_key(key: str) -> str:
    """A key of a study file."""
    return (
        key
        if key.replace("_", "").replace("-", "").isalnum() and key.isascii()
        else json.dumps(key)
    )


def toml_value(value: Any) -> str:
    """A value of a study file, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return repr(value)
