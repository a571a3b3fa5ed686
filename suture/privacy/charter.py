"""The charter: what an ethics board approved, signed with Ed25519, and what it says about a study that asks to run.

A charter is a TOML file with a ``[charter]`` table and one ``[[signature]]`` a signer. The signature covers the
canonical JSON of the table's meaning, so spaces and comments may change and nothing else may. A site holds its charter
and the public keys it trusts in its own home, and `suture/site/gate.py` asks `objections` before any row is read.

The charter's epsilon and delta cover the whole study at this site. Methods that are compared are separate promises on
the same patients, so their epsilons and deltas are added up here (basic composition, Dwork & Roth 2014, Theorem 3.16):
crude, and known before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suture.errors import CharterError
from suture.privacy.keys import canonical, key_id, sign, verifies
from suture.privacy.rule import Condition, rule_words, same_rule

_KIND = "charter"


class Charter(BaseModel):
    """What was approved.

    >>> charter = Charter(study="cardio", protocol="2026-14", expires="2027-12-31", outcome="high_risk",
    ...     features=("age",), regions=("US-MA",), sites=("boston", "lyon"), epsilon=8.0, delta=1e-5)
    >>> charter.minimum_sites, charter.exact_metrics
    (2, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    study: str
    protocol: str = Field(min_length=1)
    valid_from: date = date(1970, 1, 1)
    expires: date
    outcome: str
    features: tuple[str, ...]
    groups: tuple[str, ...] = ()
    cohort: tuple[Condition, ...] = ()
    regions: tuple[str, ...]
    sites: tuple[str, ...]
    minimum_sites: int = Field(default=2, ge=1)
    unit: Literal["patient"] = "patient"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    methods: tuple[str, ...] = ()
    """Empty: any method."""
    exact_metrics: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Charter:
        if self.expires < self.valid_from:
            raise ValueError(f"it expires ({self.expires}) before it is valid ({self.valid_from})")
        return self

    def plain(self) -> dict[str, Any]:
        """Plain values: what is signed."""
        found = self.model_dump(mode="json", exclude={"cohort"})
        return {**found, "cohort": [condition.plain() for condition in self.cohort]}

    @property
    def digest(self) -> str:
        """A short name for exactly this charter."""
        return hashlib.sha256(canonical(self.plain())).hexdigest()[:16]


@dataclass(frozen=True)
class Signed:
    """A charter and its signatures: (name of the key, signature) each."""

    charter: Charter
    signatures: tuple[tuple[str, str], ...] = ()

    def signed_by(self, key: Ed25519PrivateKey) -> Signed:
        """The same charter with one signature more (or renewed)."""
        name = key_id(key.public_key())
        others = tuple(item for item in self.signatures if item[0] != name)
        return Signed(self.charter, (*others, (name, sign(_KIND, self.charter.plain(), key))))

    def to_toml(self) -> str:
        """A file that `read_charter` reads back."""
        content = self.charter.plain()
        rule = content.pop("cohort")
        lines = ["[charter]", *(f"{key} = {_text(value)}" for key, value in content.items()), ""]
        for condition in rule:
            lines += ["[[charter.cohort]]", *(f"{key} = {_text(value)}" for key, value in condition.items()), ""]
        for key, value in self.signatures:
            lines += ["[[signature]]", f'key = "{key}"', f'value = "{value}"', ""]
        return "\n".join(lines)


def _text(value: Any) -> str:
    # TOML knows no surrogate pairs, and takes DEL only as an escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_charter(path: Path) -> Signed:
    """Read a charter file; its signatures are not checked yet (`trust`)."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CharterError(f"the charter {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CharterError(f"the charter {path} is not TOML: {error}") from None
    found = tables.get("signature", [])
    if set(tables) - {"charter", "signature"} or not isinstance(tables.get("charter"), dict):
        raise CharterError(
            f"{path}: expected a [charter] table and [[signature]] tables; see: suture charter new --help"
        )
    if not isinstance(found, list) or not all(
        isinstance(item, dict) and set(item) == {"key", "value"} and all(isinstance(t, str) for t in item.values())
        for item in found
    ):
        raise CharterError(f"{path}: each [[signature]] needs key and value; see: suture charter sign --help")
    try:
        charter = Charter.model_validate(tables["charter"])
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, p['loc']))}: {p['msg'].removeprefix('Value error, ')}" for p in error.errors()]
        raise CharterError(f"the charter {path} is not complete: {'; '.join(lines)}") from None
    return Signed(charter, tuple((item["key"], item["value"]) for item in found))


def trust(signed: Signed, trusted: tuple[Ed25519PublicKey, ...], where: str) -> Charter:
    """The charter, if a trusted key has signed exactly this content."""
    if not signed.signatures:
        raise CharterError(
            f"{where} is not signed; the board signs it with: suture charter sign {where} --key board.key"
        )
    names = {key_id(key): key for key in trusted}
    known = [(names[name], value) for name, value in signed.signatures if name in names]
    if not known:
        found = ", ".join(name for name, _ in signed.signatures)
        raise CharterError(f"{where} is signed by {found}, whom this site does not trust; it trusts {', '.join(names)}")
    if not any(verifies(_KIND, signed.charter.plain(), value, key) for key, value in known):
        raise CharterError(
            f"{where} is not what was signed: the signature is forged, or the charter was edited after signing. "
            "Ask the board for the charter it signed"
        )
    return signed.charter


@dataclass(frozen=True)
class Request:
    """What a study asks of one site, before anything is read."""

    study: str
    outcome: str
    features: tuple[str, ...]
    groups: tuple[str, ...]
    cohort: tuple[Condition, ...]
    site: str
    regions: dict[str, str]
    """The region of every site of the study, by name."""
    sites_a_round: int
    unit: str | None
    epsilon: float | None
    delta: float | None
    methods: tuple[str, ...]
    describe: bool = False
    """Whether exact histograms of the rows are asked for."""


@dataclass(frozen=True)
class Objection:
    """One reason why a charter does not allow a study: a stable name, and a sentence."""

    name: str
    text: str


def objections(charter: Charter, request: Request, today: date) -> list[Objection]:
    """Every reason to refuse; an empty list admits the study."""
    found: list[tuple[str, bool, str]] = []

    def unless(fine: bool, name: str, text: str) -> None:
        found.append((name, fine, text))

    unless(
        today >= charter.valid_from,
        "not yet valid",
        f"the charter is valid from {charter.valid_from}, today is {today}",
    )
    unless(
        today <= charter.expires,
        "expired",
        f"protocol {charter.protocol} expired on {charter.expires}, today is {today}",
    )
    unless(
        request.study == charter.study, "study", f"the charter is for study {charter.study!r}, found {request.study!r}"
    )
    unless(
        request.outcome == charter.outcome,
        "outcome",
        f"the approved outcome is {charter.outcome!r}, found {request.outcome!r}",
    )
    for name, asked, allowed in (
        ("feature", request.features, charter.features),
        ("group", request.groups, charter.groups),
        ("method", request.methods, charter.methods or request.methods),
        ("site", tuple(request.regions), charter.sites),
        ("region", tuple(dict.fromkeys(request.regions.values())), charter.regions),
    ):
        more = [item for item in asked if item not in allowed]
        unless(not more, name, f"not approved as a {name}: {', '.join(map(repr, more))}")
    unless(request.site in charter.sites, "this site", f"the charter is not for this site, {request.site!r}")
    rules = f"the approved cohort is {rule_words(charter.cohort)}; the study's is {rule_words(request.cohort)}"
    unless(same_rule(charter.cohort, request.cohort), "cohort", f"{rules}. Set schema.include")
    least = f"at least {charter.minimum_sites} sites must take part"
    unless(len(request.regions) >= charter.minimum_sites, "too few sites", f"{least}, found {len(request.regions)}")
    few = f"{least} in every round, found {request.sites_a_round}; raise method.participation"
    unless(request.sites_a_round >= charter.minimum_sites, "too few a round", few)
    fine = charter.exact_metrics or not request.describe
    unless(fine, "exact figures", "exact histograms of rows may not leave; remove evaluation.describe")
    return [Objection(name, text) for name, fine, text in found if not fine] + _promise_objections(charter, request)


def _promise_objections(charter: Charter, request: Request) -> list[Objection]:
    if request.unit is None or request.delta is None:
        return [Objection("no privacy", "the study promises no privacy; add [privacy] with unit, epsilon and delta")]
    if request.unit != charter.unit:
        return [Objection("unit", f"the approved unit is the {charter.unit}, found {request.unit!r}")]
    if request.epsilon is None:
        return [
            Objection("no epsilon", "the study states noise but no epsilon; state privacy.epsilon, so that it binds")
        ]
    count, found = len(request.methods), []
    each = f" ({count} methods of {{:g}} each)" if count > 1 else ""
    for name, asked, allowed in (
        ("epsilon", request.epsilon, charter.epsilon),
        ("delta", request.delta, charter.delta),
    ):
        if asked * count > allowed * (1 + 1e-12):
            text = f"the approved {name} is {allowed:g}, found {asked * count:g}{each.format(asked)}"
            found.append(Objection(name, text))
    return found
