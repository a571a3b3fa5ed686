"""The gate: before any row is read, where a site's rows, ledger, secret and papers are, whether a
study may run here, and which of the site's patients pass. The site decides.

*Charter.* The site's home may hold ``charter.toml`` (or the study names another place) and
``trust.pub``, the keys it trusts. What the charter does not allow is refused, all reasons at once,
and noted in the site's ledger; so is every admission. A site that has trusted keys and no charter
refuses everything: whoever writes the study file cannot switch the gate off. A charter names the
study by its digest. A site without a charter accepts a study by a copy of it in ``studies/`` of its
home, which a person puts there (`accepted`); studies that arrive over a network are compared with
both.

*Consent.* A table at the site says who agreed to which study, since when, and who withdrew. A
patient passes on a day when the latest consent given by then is later than the latest withdrawal by
then; a patient who is not in the table does not pass. A date that cannot be read is not guessed at:
its patient does not pass, whatever else the table says of them. The others do: refusing a study for
one patient's row would tell whoever asked about that row.

*Erasure.* A patient who asked to be erased is known by a tombstone: the first 128 bits of SHA-256
over a key, derived from the site's secret, and the patient's identifier. Identifiers are few and
could be tried one by one against a plain hash; without the secret they cannot be tried against this
one. Tombstones are notes in the site's ledger, so one that is removed shows. Each carries a name of
the key: with another secret the tombstones would match nobody, and that must be an error, not a
silence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suture.errors import CharterError, LedgerError, StudyError
from suture.privacy.charter import Charter, Objection, Request, objections, read_charter, trust
from suture.privacy.files import file_digest, write_whole
from suture.privacy.ledger.chain import ADMITTED
from suture.privacy.ledger.ledger import Budget, Entry, Ledger
from suture.privacy.noise.source import derive, secure_key, seeded_key
from suture.privacy.signing import read_public
from suture.schema.table import Schema
from suture.site.preprocess import sql_text, texts
from suture.site.reading import (
    NOBODY,
    Keys,
    Passage,
    distinct,
    first_rows,
    hashed,
    held_out,
    sql_key,
)
from suture.site.sources import (
    DEID_REPORT,
    ConsentSpec,
    Opened,
    Source,
    SourceSpec,
    open_table,
)
from suture.site.sql import quoted
from suture.study import Site, Study

LEDGER = "ledger.sqlite"
LIFETIME = Budget(10.0, 1e-4, "pld")
"""What all studies together may spend on a real site's patients, unless the site states otherwise."""


@dataclass(frozen=True)
class Place:
    """Where one site's rows are, before any has been read."""

    name: str
    region: str
    source: Source
    test: Source | None
    home: Path | None
    """None for generated patients and simulations: their secret is derived from the seed."""
    papers: Papers = field(default_factory=lambda: Papers(None, None))
    edition: int = 1  # raised by a person when the table's rows are new
    stated: Budget | None = None  # the lifetime budget that the site states, if it states one

    @property
    def needs_ready(self) -> bool:
        """Whether a person must sign for its table before anything is charged; generated patients,
        simulations and built-in tables need nobody."""
        return self.home is not None and not isinstance(self.source, Mapping)

    @property
    def lifetime(self) -> Budget | None:
        """What all studies together may spend here: every site with a home has a limit."""
        return None if self.home is None else self.stated or LIFETIME


def place_of(site: Site, base: Path) -> Place:
    """Where one site of a study file keeps everything; paths are relative to ``base``."""
    if site.data is None:
        raise StudyError(
            f"site {site.name!r} has no data = ... here, so only the site itself can read its "
            "rows: run the study through the hub that the sites are connected to (suture run "
            "study.toml --hub HUB), or name the table"
        )
    home = base / (site.home or Path(".suture") / site.name)
    charter = base / site.charter if site.charter else None
    trust = base / site.trust if site.trust else None
    consent = site.consent.under(base) if site.consent else None
    source, test = site.data.under(base), site.test.under(base) if site.test else None
    tables = (source,) if test is None else (source, test)
    return Place(
        site.name,
        site.region,
        source,
        test,
        home,
        Papers.at(home, charter, trust, consent, tables),
        site.edition,
        Budget(**site.lifetime.model_dump()) if site.lifetime else None,
    )


def named_place(file: Path, site: str) -> Place:
    """One site of a study file, by name."""
    found = {item.name: item for item in Study.from_toml(file).sites}
    if site not in found:
        names = ", ".join(found) or "none: its patients are generated"
        raise StudyError(f"{file} has no site {site!r} of its own; it has: {names}")
    return place_of(found[site], file.resolve().parent)


def secret_of(place: Place, seed: int) -> bytes:
    """The site's secret: its own for real patients, derived from the seed for generated ones."""
    return seeded_key(seed, "site", place.name) if place.home is None else site_secret(place.home)


def open_ledger(place: Place, folder: Path | None) -> Ledger:
    """The site's own ledger, to look at and to note in (charges: `suture.site.ready.charging`);
    for generated patients one in the run folder, or in memory."""
    if place.home is not None:
        _make(place.home)
        ledger = Ledger.open(place.home / LEDGER, place.name)
        ledger.locked = place.needs_ready
        return ledger
    path = None if folder is None else folder / "ledgers" / f"{place.name}.sqlite"
    return Ledger.open(path, place.name, durable=False)


@contextmanager
def borrowed(place: Place, folder: Path | None) -> Iterator[Ledger]:
    """The site's ledger for a moment."""
    with closing(open_ledger(place, folder)) as ledger:
        yield ledger


def open_lifetime(place: Place, ledger: Ledger, *, private: bool = True) -> None:
    """Record the site's lifetime budget before anything is promised.

    The default is recorded with the first promise of privacy, where nothing is recorded yet: it
    does not replace what the site said earlier, and a study that promises nothing does not record
    it.
    """
    if place.lifetime is not None and (place.stated or (private and ledger.lifetime is None)):
        ledger.open_lifetime(place.lifetime)


def note_skipped(home: Path, skipped: Sequence[str]) -> None:
    """List image files that were left out in the site's own folder: names may tell of patients."""
    _make(home)
    write_whole(home / "skipped-images.txt", ("\n".join(skipped) + "\n").encode())


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(f"the site's home {home} cannot be made: {error}") from None


def site_secret(home: Path) -> bytes:
    """The site's secret: 32 bytes, made once, readable by the site's user only."""
    path = home / "secret.key"
    _make(home)
    try:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            secret = path.read_bytes()
            if len(secret) != 32:
                raise LedgerError(
                    f"{path} should hold 32 bytes, found {len(secret)}; restore it from the site's "
                    "backup. A new secret is safe too, but then repeated releases are charged again"
                ) from None
            return secret
        with os.fdopen(handle, "wb") as file:
            secret = secure_key()
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        return secret
    except OSError as error:
        raise LedgerError(f"the site's secret {path} cannot be read or written: {error}") from None


CHARTER, TRUST, STUDIES = "charter.toml", "trust.pub", "studies"
REFUSED, CONSENT, ERASED = "refused", "consent", "erased"
EVERY_STUDY = "*"
_NEVER, _UNREADABLE, _ALWAYS = -(10**9), -(10**9) - 1, 10**9


# --- charter ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Papers:
    """Where a site keeps what the gate looks at; None: not there."""

    charter: Path | None
    trust: Path | None
    consent: ConsentSpec | None = None
    tables: tuple[SourceSpec, ...] | None = ()
    """The site's tables; None: they are elsewhere, and not looked at."""

    @classmethod
    def at(
        cls,
        home: Path,
        charter: Path | None,
        trusted: Path | None,
        consent: ConsentSpec | None,
        tables: tuple[SourceSpec, ...] = (),
    ) -> Papers:
        """What lies in the site's home, and what the study names.

        A charter may come from anywhere, since a trusted key must have signed it. The keys may not:
        those in the home count, whatever a study file says.
        """
        own = {name: home / name for name in (CHARTER, TRUST) if (home / name).exists()}
        return cls(charter or own.get(CHARTER), own.get(TRUST) or trusted, consent, tables)

    @property
    def none(self) -> bool:
        """Whether there is nothing here to enforce."""
        return self.charter is None and self.trust is None and self.consent is None


@dataclass(frozen=True)
class Admission:
    """The gate's answer: the charter it rests on (None: none is enforced here), and who passes."""

    charter: Charter | None
    passage: Passage

    @property
    def exact_metrics(self) -> bool:
        """Whether exact figures about this site's patients may leave."""
        return self.charter is None or self.charter.exact_metrics

    @property
    def terms(self) -> str | None:
        """The charter in words, for a result; None: no charter is enforced here."""
        if self.charter is None:
            return None
        withheld = "" if self.exact_metrics else ", exact figures withheld"
        law = "".join(f", {name}: {text}" for name, text in self.charter.law.items())
        return f"protocol {self.charter.protocol}, charter {self.charter.digest}{withheld}{law}"


def check(papers: Papers, request: Request, today: date) -> tuple[Charter | None, list[Objection]]:
    """The charter, if there is one to be trusted, and every objection to the request."""
    if papers.charter is None and papers.trust is None:
        return None, []
    if papers.charter is None:
        words = "this site takes part under a signed charter only, and holds none"
        return None, [Objection("no charter", words)]
    if papers.trust is None:
        words = f"this site has a charter and no trusted key to check it with ({TRUST})"
        return None, [Objection("no trusted key", words)]
    try:
        read, keys = read_charter(papers.charter), read_public(papers.trust)
        charter = trust(read, keys, papers.charter.name)
    except CharterError as error:
        return None, [Objection("not to be trusted", str(error))]
    found = objections(charter, request, today)
    if charter.require_deidentified and papers.tables is not None:
        reasons = [_not_deidentified(table) for table in papers.tables] or ["there is no table"]
        found += [
            Objection("not de-identified", f"{why}; write it with: suture deid apply")
            for why in reasons
            if why
        ]
    return charter, found


def _not_deidentified(table: SourceSpec) -> str:
    """Why a table does not count as de-identified: the report beside it is of exactly this file."""
    if table.path is None:
        return "the charter asks for a de-identified table, and this one is not a file"
    file = Path(table.path)
    report = file.with_name(file.name + DEID_REPORT)
    try:
        told = json.loads(report.read_text(encoding="utf-8"))
        if isinstance(told, dict) and told.get("sha256") == file_digest(file):
            return ""
    except (OSError, ValueError):
        return f"the charter asks for a de-identified table, and there is no {report.name}"
    return f"{report.name} is about another edition of the table"


def admit(ledger: Ledger, secret: bytes, papers: Papers, request: Request) -> Admission:
    """Refuse, or say who passes, and note it. Reads charter and consent table, but no rows."""
    charter, found = check(papers, request, _today(ledger))
    if found:
        facts = {"charter": charter and charter.digest, "why": [item.name for item in found]}
        entry = ledger.note(request.study, REFUSED, facts, again=True)
        reasons = "".join(f"\n  - {item.text}" for item in found)
        raise CharterError(
            f"site {request.site!r} refuses study {request.study!r}; nothing was read (noted as "
            f"entry {entry.seq} of its ledger):{reasons}"
        )
    if charter is not None:
        terms = {
            "charter": charter.digest,
            "protocol": charter.protocol,
            "expires": str(charter.expires),
            "epsilon": charter.epsilon,
            "delta": charter.delta,
            "exact metrics": charter.exact_metrics,
            **charter.law,
        }
        ledger.note(request.study, ADMITTED, terms)
    return Admission(charter, passage_of(ledger, secret, papers, request.study, request.site))


def accepted(home: Path) -> frozenset[str]:
    """The digests of the studies that a person at the site has accepted (``suture site accept``).

    A file that is no study accepts nothing: what cannot be read approves of nothing.
    """
    found = set()
    for path in sorted((home / STUDIES).glob("*.toml")):
        with suppress(StudyError):
            found.add(Study.from_toml(path).digest)
    return frozenset(found)


# --- who passes -------------------------------------------------------------------------------------------------------


def passage_of(ledger: Ledger, secret: bytes, papers: Papers, study: str, site: str) -> Passage:
    """Who passes today: nobody who is erased; with a consent table, only who consents."""
    passage = Passage(passage_key(secret), erased=erased_keys(ledger, secret))
    return consented(passage, papers, study, _today(ledger), site)


def consented(passage: Passage, papers: Papers, study: str, today: date, site: str) -> Passage:
    """The same passage, narrowed to those who consent, where the site has a consent table."""
    if papers.consent is not None:
        passage.consenting, passage.withdrawn, passage.problems = read_consent(
            papers.consent, study=study, today=today, key=passage.key, site=site
        )
    return passage


def note_counts(ledger: Ledger, study: str, passage: Passage) -> None:
    """Note at the site how many did not pass at the last reading, and why."""
    ledger.note(study, CONSENT, passage.tally)


def passage_key(secret: bytes) -> str:
    """The key under which a site compares identifiers."""
    return derive(secret, "passage").hex()


def _today(ledger: Ledger) -> date:
    return date.fromisoformat(ledger.now()[:10])


# --- consent ----------------------------------------------------------------------------------------------------------


def read_consent(
    spec: ConsentSpec, *, study: str, today: date, key: str, site: str
) -> tuple[Keys, Keys, tuple[str, ...]]:
    """The keys of who consents to the study today, of who withdrew, and what cannot be read."""
    named = [column for column in (spec.study, spec.given, spec.withdrawn) if column is not None]
    with open_table(spec, [spec.patient, *named], site=site) as opened:
        patient = sql_text(opened, spec.patient)
        high, low = sql_key(patient, key)
        chosen = f"{patient} IS NOT NULL"
        if spec.study is not None:
            chosen += f" AND coalesce({sql_text(opened, spec.study)} = {quoted(study)}, false)"
        asked = {"hi": high, "lo": low, "chosen": chosen}
        asked["given"] = "0::BIGINT" if spec.given is None else _days(opened, spec.given)
        never = f"{_NEVER}::BIGINT"
        asked["withdrawn"] = never if spec.withdrawn is None else _days(opened, spec.withdrawn)
        found = opened.select(asked)
    problems, unreadable = [], np.zeros(len(found["hi"]), bool)
    for name, column in (("given", spec.given), ("withdrawn", spec.withdrawn)):
        here = found[name] == _UNREADABLE
        unreadable |= here
        if here.any():
            setting = "from" if name == "given" else name
            problems.append(
                f"consent, column {column!r} ({setting}): {np.count_nonzero(here)} rows with "
                "something else than a date; their patients do not pass. Write dates as 2026-01-31"
            )
    mine = np.asarray(found["chosen"], bool)
    keys = np.column_stack([found["hi"], found["lo"]])[mine]
    day = (today - date(1970, 1, 1)).days
    given, withdrawn = found["given"][mine], found["withdrawn"][mine]
    begun = np.where(given <= day, given, _NEVER)
    ended = np.where(unreadable[mine], _ALWAYS, np.where(withdrawn <= day, withdrawn, _NEVER))
    return (*_by_patient(keys, begun, ended), tuple(problems))


def _days(opened: Opened, column: str) -> str:
    """A date column as days since 1970; two marks for an empty cell and for anything else."""
    text = sql_text(opened, column)
    # DuckDB would read 31/05/26 as a day of the year 31: only one form passes.
    written = f"regexp_full_match({text}, '\\d{{4}}-\\d{{2}}-\\d{{2}}([ T].*)?')"
    day = f"CASE WHEN {written} THEN TRY_CAST(substr({text}, 1, 10) AS DATE) END"
    other = f"CASE WHEN {text} IS NULL THEN {_NEVER} ELSE {_UNREADABLE} END"
    return f"coalesce(date_diff('day', DATE '1970-01-01', {day}), {other})::BIGINT"


def _by_patient(
    keys: Keys, given: NDArray[np.int64], withdrawn: NDArray[np.int64]
) -> tuple[Keys, Keys]:
    """Who consents and who withdrew, by the latest consent and withdrawal over a patient's rows."""
    if not len(keys):
        return keys, keys
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    starts = first_rows(keys[order])
    last_given = np.maximum.reduceat(given[order], starts)
    last_withdrawn = np.maximum.reduceat(withdrawn[order], starts)
    patients = distinct(keys)
    consents = (last_given > _NEVER) & (last_given > last_withdrawn)
    return patients[consents], patients[~consents & (last_withdrawn > _NEVER)]


# --- erasure ----------------------------------------------------------------------------------------------------------


def tombstone(secret: bytes, patient: str) -> str:
    """What stands for an erased patient."""
    return bytes(hashed([patient.strip()], passage_key(secret)).astype(">u8").tobytes()).hex()


def erase_at_site(ledger: Ledger, secret: bytes, patient: str) -> tuple[Entry, bool]:
    """Write the tombstone, once; returns its note and whether it was new."""
    if (found := erased_entry(ledger, secret, patient)) is not None:
        return found, False
    facts = {"tombstone": tombstone(secret, patient), "key": _key_name(secret)}
    return ledger.note(EVERY_STUDY, ERASED, facts, again=True), True


def erased_entry(ledger: Ledger, secret: bytes, patient: str) -> Entry | None:
    """The note of a patient's erasure, if they were erased."""
    mark = tombstone(secret, patient)
    notes = ledger.notes(ERASED)
    return next((e for e in notes if json.loads(e.event)["tombstone"] == mark), None)


def erased_keys(ledger: Ledger, secret: bytes) -> Keys:
    """The keys of all erased patients."""
    notes = [json.loads(entry.event) for entry in ledger.notes(ERASED)]
    if not notes:
        return NOBODY
    strange = sum(note["key"] != _key_name(secret) for note in notes)
    if strange:
        raise LedgerError(
            f"site {ledger.site!r}: {strange} of {len(notes)} erased patients were marked under "
            "another secret and can no longer be recognised, so nobody may pass; restore "
            "secret.key from the site's backup, or erase them again in a new home"
        )
    content = b"".join(bytes.fromhex(note["tombstone"]) for note in notes)
    return np.frombuffer(content, ">u8").astype(np.uint64).reshape(-1, 2)


def _key_name(secret: bytes) -> str:
    return derive(secret, "name of the passage key").hex()[:16]


def rows_of(source: Source, schema: Schema, patient: str, *, site: str) -> int:
    """How many rows of a table are this patient's: for the patient's own certificate."""
    if schema.patient is None:
        return 0
    if not isinstance(source, SourceSpec):
        return sum(text == patient.strip() for text in texts(np.asanyarray(source[schema.patient])))
    with open_table(source, [schema.patient], site=site) as opened:
        mine = f"{sql_text(opened, schema.patient)} = {quoted(patient.strip())}"
        return int(opened.select({"rows": f"count(*) FILTER (WHERE {mine})"})["rows"][0])


def is_held_out(patient: str, holdout: float, split_key: str) -> bool:
    """Whether the split keeps this patient for testing, so that no model was trained on them."""
    return bool(held_out(hashed([patient.strip()], split_key), holdout)[0])
