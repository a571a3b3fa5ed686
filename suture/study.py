"""The study: question, sites, method, promise and evaluation, as frozen, validated objects. TOML in, TOML out.

A `Study` is what is promised. How it runs (threads, output folder, progress) are arguments of `suture.run` and can never
change a privacy figure or a number in the result.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from suture.errors import StudyError
from suture.protection.settings import ProtectionSpec
from suture.settings import (
    FROZEN,
    CohortSpec,
    EvaluationSpec,
    FederationSpec,
    ImagesSpec,
    MethodSpec,
    ModelSpec,
    Name,
    PrivacySpec,
    Site,
    explain,
)
from suture.site.records import SourceSpec
from suture.site.schema import Schema


class Study(BaseModel):
    """Everything that is promised about one study.

    >>> study = Study(name="demo", outcome="high_risk", cohort="cardio", method={"name": "fedavg", "rounds": 3})
    >>> study.method.rounds, study.private
    (3, False)
    """

    model_config = FROZEN

    name: Name
    outcome: str
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Labels of an outcome with more than two classes, in order; for a built-in cohort the cohort knows."""
    seed: int = Field(default=42, ge=0)
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
    def _sized(self) -> Study:
        """The size is said once, in [images]; the schema, from which every model's width follows, takes it over."""
        if self.table is None or self.table.image is None:
            if self.images is not None and self.cohort is None:
                raise ValueError('[images] needs a column of images: in [schema.features], image = { kind = "image" }')
            return self
        column, feature = self.table.image, self.table.features[self.table.image]
        given = (
            "size" in feature.model_fields_set and self.images is not None and "size" in self.images.model_fields_set
        )
        if self.images is not None and given and self.table.image_size != self.images.size:
            raise ValueError(
                f"images.size is {self.images.size} and schema.features.{column}.size is {self.table.image_size}; say it once"
            )
        size = self.images.size if self.images and "size" in self.images.model_fields_set else self.table.image_size
        sized = self.table.model_copy(update={"features": {column: feature.model_copy(update={"size": size})}})
        object.__setattr__(self, "table", sized)
        object.__setattr__(self, "images", (self.images or ImagesSpec()).model_copy(update={"size": size}))
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        if (self.cohort is None) == (not self.sites):
            raise ValueError('give either cohort = "cardio" under [study], or [[site]] tables, and not both')
        if self.sites:
            if self.table is None:
                raise ValueError("[[site]] tables need a [schema] that declares the patient column and the features")
            if not self.table.features:
                raise ValueError("[schema.features] declares no feature")
            if self.outcome in self.table.features:
                raise ValueError(f"the outcome {self.outcome!r} is also listed as a feature")
            if self.privacy and not self.table.patient:
                raise ValueError(
                    'privacy.unit = "patient" needs schema.patient = "<column that identifies the patient>"'
                )
            names = [site.name.casefold() for site in self.sites]
            twice = sorted({site.name for site in self.sites if names.count(site.name.casefold()) > 1})
            if twice:
                raise ValueError(f"site names must differ (upper and lower case count as equal), found twice: {twice}")
        if self.evaluation.folds == 1:
            raise ValueError(
                "evaluation.folds: expected 0 (hold out patients) or 2 and more (hold out hospitals), found 1"
            )
        if self.classes and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError(f"study.classes needs two or more different labels, found {list(self.classes)}")
        weights, count = self.method.class_weights, len(self.classes) or 2
        if isinstance(weights, tuple) and self.sites and len(weights) != count:
            raise ValueError(f"method.class_weights needs one weight a class ({count}), found {len(weights)}")
        if self.privacy:
            self._nothing_fitted()
        return self

    def _nothing_fitted(self) -> None:
        """Whatever is computed from rows without noise would leave the site inside the model, unpaid for."""
        if self.model.scaling == "site":
            raise ValueError(
                'model.scaling = "site" fits means to patients, which no budget pays for; under [privacy] use "bounds"'
            )
        if isinstance(self.method.class_weights, str):
            raise ValueError(
                f'method.class_weights = "{self.method.class_weights}" counts patients by outcome, which no budget pays '
                "for; under [privacy] state the weights, for example class_weights = [1.0, 4.0]"
            )

    @property
    def private(self) -> bool:
        """Whether the study promises differential privacy."""
        return self.privacy is not None

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
            given = value.model_dump(by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value
            old = fields.get(key)
            fields[key] = {**old, **given} if isinstance(given, dict) and isinstance(old, dict) else given
        return Study(**{key: value for key, value in fields.items() if value is not None})

    def without_passwords(self) -> Study:
        """The same study with no database password in it: this is what run folders and results hold."""
        return self._with_sources(lambda _, source: source.without_password())

    def with_passwords_of(self, other: Study) -> Study:
        """Passwords taken back from another reading of the same file, site by site."""
        known = {site.name: site for site in other.sites}

        def fill(site: Site, source: SourceSpec) -> SourceSpec:
            if site.name not in known:
                return source
            candidates = (known[site.name].data, known[site.name].test, known[site.name].consent)
            return next((c for c in candidates if c is not None and c.without_password() == source), source)

        return self._with_sources(fill)

    def public(self) -> Study:
        """The study as it is sent to sites: where anybody's rows, ledgers and papers are is left out.

        >>> Study(name="s", outcome="y", sites=[{"name": "a", "data": "a.csv"}, {"name": "b"}],
        ...     schema={"features": {"x": {"kind": "flag"}}}).public().sites[0]
        Site(name='a', data=None, region='', test=None, home=None, charter=None, trust=None, consent=None, lifetime=None)
        """
        bare = dict.fromkeys(("data", "test", "home", "charter", "trust", "consent", "lifetime"))
        return self.model_copy(update={"sites": tuple(site.model_copy(update=bare) for site in self.sites)})

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
            raise StudyError(f"study file {path} does not exist; `suture init` writes an example") from None
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
        keys = ("name", "outcome", "classes", "seed", "cohort")
        inside = sorted(set(head) - set(keys))
        if inside:
            raise StudyError(f"[study] has an unknown key {inside[0]!r}; expected {', '.join(keys)}")
        if "site" in tables:
            tables["sites"] = tables.pop("site")
        return cls(**head, **tables)

    def to_toml(self) -> str:
        """The study as a file that `from_toml` reads back to an equal study."""
        fields = self.to_dict()
        sites = [
            {key: _short(value) if key in ("data", "test") else value for key, value in site.items()}
            for site in fields.pop("sites", [])
        ]
        head: dict[str, Any] = {
            key: fields.pop(key) for key in ("name", "outcome", "classes", "seed", "cohort") if key in fields
        }
        schema = fields.pop("schema", None)
        lines = _table("study", head)
        for site in sites:
            lines += _table("site", site, "[[{}]]")
        if schema:
            features = schema.pop("features", {})
            lines += _table("schema", schema)
            lines += _table("schema.features", features)
        for key in ("images", "model", "method", "privacy", "protection", "evaluation", "federation"):
            if key in fields:
                lines += _table(key, fields[key])
        return "\n".join(lines).strip() + "\n"


def _short(source: dict[str, Any]) -> Any:
    """A source as a person would write it: what is said by default is left out."""
    told = SourceSpec(**source).model_dump(mode="json", exclude_defaults=True)
    return told["path"] if set(told) == {"path"} else told


def _table(name: str, values: dict[str, Any], heading: str = "[{}]") -> list[str]:
    return [heading.format(name), *(f"{_key(key)} = {_toml(value)}" for key, value in values.items()), ""]


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)
