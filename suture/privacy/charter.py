"""The charter: what an ethics board approved, signed, and whether a study conforms to it.

A charter is a TOML file with a ``[charter]`` table and one ``[[signature]]`` per signer. The
signature covers the canonical JSON of the table's meaning, so only spaces and comments may change.
A site holds its charter and the public keys it trusts in its own home, and `suture/site/gate.py`
asks for `objections` before any row is read.

The study is named by its digest (``plan``, `Study.digest`): changing any setting makes it another
study, which nobody approved. The other fields tell the board in words what it approves, and bind
too.

The charter's epsilon and delta cover the whole study at this site. Methods that are compared are
separate promises on the same patients, so their epsilons and deltas are added up here (basic
composition, Dwork & Roth 2014, Theorem 3.16): crude, and known before anything is read.
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
from suture.privacy.canonical import json_text
from suture.privacy.signing import key_id, sign, verifies
from suture.schema.table import Condition, rule_words, same_rule

_KIND = "charter"
LATER = (
    "lawful_basis",
    "purpose",
    "controller",
    "automated_decisions",
    "retention",
    "require_masked",
    "require_deidentified",
)
"""Fields that the first charters did not have."""


class Charter(BaseModel):
    """What was approved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    study: str
    plan: str = Field(pattern="^[0-9a-f]{64}$")
    """The digest of the approved study."""
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
    lawful_basis: str = ""
    purpose: str = ""
    controller: str = ""
    """Who answers for the processing, and how to reach them."""
    automated_decisions: Literal["", "none", "reviewed by a person", "without a person"] = ""
    """What the model may decide about a patient."""
    retention: date | None = None
    """The last day on which models and results may be kept."""
    require_masked: bool = False
    require_deidentified: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Charter:
        if self.expires < self.valid_from:
            raise ValueError(f"it expires ({self.expires}) before it is valid ({self.valid_from})")
        if self.retention is not None and self.retention < self.expires:
            raise ValueError(
                f"results may be kept until {self.retention}, but the study may run until "
                f"{self.expires}; let it expire by then"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """Plain values: what is signed.

        What was added later counts only where it is said, so that older signatures hold.
        """
        found = self.model_dump(mode="json", exclude={"cohort"})
        unsaid = {name for name in LATER if found[name] in ("", None, False)}
        rest = {name: value for name, value in found.items() if name not in unsaid}
        return {**rest, "cohort": [condition.plain() for condition in self.cohort]}

    @property
    def law(self) -> dict[str, str]:
        """What the law asks to be told, by name, as far as the charter says it."""
        told = {
            "lawful basis": self.lawful_basis,
            "purpose": self.purpose,
            "controller": self.controller,
            "automated decisions": self.automated_decisions,
            "kept until": str(self.retention or ""),
            "sums": "under masks only" if self.require_masked else "",
            "table": "de-identified only" if self.require_deidentified else "",
        }
        return {name: text for name, text in told.items() if text}

    @property
    def digest(self) -> str:
        """A short name for exactly this charter."""
        return hashlib.sha256(json_text(self.plain()).encode()).hexdigest()[:16]


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
        tables = [("[charter]", content), *(("[[charter.cohort]]", one) for one in rule)]
        tables += [("[[signature]]", {"key": key, "value": v}) for key, v in self.signatures]
        lines: list[str] = []
        for title, table in tables:
            lines += [title, *(f"{key} = {_text(value)}" for key, value in table.items()), ""]
        return "\n".join(lines)


def _text(value: object) -> str:
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
        expected = "expected a [charter] table and [[signature]] tables"
        raise CharterError(f"{path}: {expected}; see: suture charter new --help")
    if not isinstance(found, list) or not all(map(_is_signature, found)):
        expected = "each [[signature]] needs key and value"
        raise CharterError(f"{path}: {expected}; see: suture charter sign --help")
    try:
        charter = Charter.model_validate(tables["charter"])
    except ValidationError as error:
        problems = ((".".join(map(str, p["loc"])), p["msg"]) for p in error.errors())
        text = "; ".join(f"{where}: {m.removeprefix('Value error, ')}" for where, m in problems)
        raise CharterError(f"the charter {path} is not complete: {text}") from None
    return Signed(charter, tuple((item["key"], item["value"]) for item in found))


def _is_signature(item: object) -> bool:
    if not isinstance(item, dict) or set(item) != {"key", "value"}:
        return False
    return all(isinstance(text, str) for text in item.values())


def trust(signed: Signed, trusted: tuple[Ed25519PublicKey, ...], where: str) -> Charter:
    """The charter, if a trusted key has signed exactly this content."""
    if not signed.signatures:
        raise CharterError(
            f"{where} is not signed; the board signs it with: suture charter sign {where} --key "
            "board.key"
        )
    names = {key_id(key): key for key in trusted}
    known = [(names[name], value) for name, value in signed.signatures if name in names]
    if not known:
        found = ", ".join(name for name, _ in signed.signatures)
        whom = f"whom this site does not trust; it trusts {', '.join(names)}"
        raise CharterError(f"{where} is signed by {found}, {whom}")
    if not any(verifies(_KIND, signed.charter.plain(), value, key) for key, value in known):
        raise CharterError(
            f"{where} is not what was signed: the signature is forged, or the charter was edited "
            "after signing. Ask the board for the charter it signed"
        )
    return signed.charter


@dataclass(frozen=True)
class Request:
    """What a study asks of one site, before anything is read."""

    study: str
    plan: str
    """The digest of the study."""
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
    masked: bool = False
    """Whether what leaves the site can be read in no sum of fewer sites than the study says."""


@dataclass(frozen=True)
class Objection:
    """One reason why a charter does not allow a study: a stable name, and a sentence."""

    name: str
    text: str


def objections(charter: Charter, request: Request, today: date) -> list[Objection]:
    """Every reason to refuse; an empty list admits the study."""
    c, r, now = charter, request, f"today is {today}"
    plans = f"its digest is {r.plan[:12]}, approved is {c.plan[:12]}"
    rules = f"the approved cohort is {rule_words(c.cohort)}; the study's is {rule_words(r.cohort)}"
    least, sites = f"at least {c.minimum_sites} sites must take part", len(r.regions)
    few = f"{least} in every round, found {r.sites_a_round}; raise method.participation"
    lists = (
        ("feature", r.features, c.features),
        ("group", r.groups, c.groups),
        ("method", r.methods, c.methods or r.methods),
        ("site", tuple(r.regions), c.sites),
        ("region", tuple(dict.fromkeys(r.regions.values())), c.regions),
    )
    more = {name: [item for item in asked if item not in fine] for name, asked, fine in lists}
    checks = (
        (today >= c.valid_from, "not yet valid", f"it is valid from {c.valid_from}, {now}"),
        (today <= c.expires, "expired", f"protocol {c.protocol} expired on {c.expires}, {now}"),
        (r.study == c.study, "study", f"the charter is for study {c.study!r}, found {r.study!r}"),
        (r.plan == c.plan, "plan", f"the study is not the one that was approved ({plans})"),
        (r.outcome == c.outcome, "outcome", f"the outcome is {c.outcome!r}, found {r.outcome!r}"),
        *(
            (not found, name, f"not approved as a {name}: {', '.join(map(repr, found))}")
            for name, found in more.items()
        ),
        (r.site in c.sites, "this site", f"the charter is not for this site, {r.site!r}"),
        (same_rule(c.cohort, r.cohort), "cohort", f"{rules}. Set schema.include"),
        (sites >= c.minimum_sites, "too few sites", f"{least}, found {sites}"),
        (r.sites_a_round >= c.minimum_sites, "too few a round", few),
        (
            c.retention is None or today <= c.retention,
            "retention",
            f"results may be kept until {c.retention}, {now}",
        ),
        (
            r.masked or not c.require_masked,
            "masked",
            "a figure of this site alone may not leave, only sums under masks; set sum = "
            '"masked" in [protection]. Releases and comparisons of one site are refused',
        ),
        (
            c.exact_metrics or not r.describe,
            "exact figures",
            "exact histograms of rows may not leave; remove evaluation.describe",
        ),
    )
    found = [Objection(name, text) for fine, name, text in checks if not fine]
    return found + _promise_objections(charter, request)


def _promise_objections(charter: Charter, request: Request) -> list[Objection]:
    if request.unit is None or request.delta is None:
        text = "the study promises no privacy; add [privacy] with unit, epsilon and delta"
        return [Objection("no privacy", text)]
    if request.unit != charter.unit:
        text = f"the approved unit is the {charter.unit}, found {request.unit!r}"
        return [Objection("unit", text)]
    if request.epsilon is None:
        text = "the study states noise but no epsilon; state privacy.epsilon, so that it binds"
        return [Objection("no epsilon", text)]
    count, found = len(request.methods), []
    each = f" ({count} methods of {{:g}} each)" if count > 1 else ""
    for name, asked, allowed in (
        ("epsilon", request.epsilon, charter.epsilon),
        ("delta", request.delta, charter.delta),
    ):
        if asked * count > allowed * (1 + 1e-12):
            total = f"{asked * count:g}{each.format(asked)}"
            found.append(Objection(name, f"the approved {name} is {allowed:g}, found {total}"))
    return found
