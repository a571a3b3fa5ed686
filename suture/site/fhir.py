"""FHIR R4 as a source of records: a folder of bulk-export NDJSON files and of bundles, read by
DuckDB's JSON reader, file by file. Nothing is loaded as a whole.

A resource is read into the few fields below; a field of another shape is NULL, so no resource can
make a query fail. What was entered in error, cancelled, refuted or not done does not count. Times
are those of the clock on the wall, as written: the offset from UTC is left aside. A partial date is
its first day (a birth in a known year: 1 July).

https://hl7.org/fhir/R4/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from suture.errors import DataError
from suture.site.features import Concepts
from suture.site.records import Ask, View, in_use
from suture.site.sql import literal_path, quoted

SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "LOINC": ("http://loinc.org", "urn:oid:2.16.840.1.113883.6.1"),
    "SNOMED": ("http://snomed.info/sct", "urn:oid:2.16.840.1.113883.6.96"),
    "RxNorm": ("http://www.nlm.nih.gov/research/umls/rxnorm", "urn:oid:2.16.840.1.113883.6.88"),
    "ICD10CM": ("http://hl7.org/fhir/sid/icd-10-cm", "urn:oid:2.16.840.1.113883.6.90"),
    "ICD10": ("http://hl7.org/fhir/sid/icd-10",),
    "ICD10GM": ("http://fhir.de/CodeSystem/bfarm/icd-10-gm",),
    "ICD9CM": ("http://hl7.org/fhir/sid/icd-9-cm",),
    "ICD10PCS": ("http://www.cms.gov/Medicare/Coding/ICD10",),
    "CPT4": ("http://www.ama-assn.org/go/cpt",),
    "CVX": ("http://hl7.org/fhir/sid/cvx",),
    "NDC": ("http://hl7.org/fhir/sid/ndc",),
    "ATC": ("http://www.whocc.no/atc",),
    "ActCode": ("http://terminology.hl7.org/CodeSystem/v3-ActCode",),
}
"""FHIR's name of each vocabulary; any other is named by its URI."""

_CODE = {"coding": [{"system": "VARCHAR", "code": "VARCHAR"}]}
_REFERENCE, _PERIOD = {"reference": "VARCHAR"}, {"start": "VARCHAR", "end": "VARCHAR"}
_QUANTITY = {"value": "DOUBLE", "unit": "VARCHAR", "code": "VARCHAR"}
_VALUE = {"code": _CODE, "valueQuantity": _QUANTITY, "valueCodeableConcept": _CODE}
_VALUE |= {"valueInteger": "DOUBLE"}
_EVENT = {"id": "VARCHAR", "status": "VARCHAR", "subject": _REFERENCE}
_FIELDS: dict[str, dict[str, object]] = {
    "Patient": {
        "id": "VARCHAR", "birthDate": "VARCHAR", "gender": "VARCHAR",
        "deceasedDateTime": "VARCHAR", "deceasedBoolean": "BOOLEAN",
    },
    "Encounter": {
        **_EVENT, "class": _CODE["coding"][0], "type": [_CODE], "period": _PERIOD,
    },
    "Condition": {
        **_EVENT, "code": _CODE, "verificationStatus": _CODE, "onsetDateTime": "VARCHAR",
        "onsetPeriod": _PERIOD, "recordedDate": "VARCHAR", "abatementDateTime": "VARCHAR",
    },
    "Observation": {
        **_EVENT, **_VALUE, "effectiveDateTime": "VARCHAR", "effectivePeriod": _PERIOD,
        "effectiveInstant": "VARCHAR", "component": [_VALUE],
    },
    "MedicationRequest": {
        **_EVENT, "medicationCodeableConcept": _CODE, "medicationReference": _REFERENCE,
        "authoredOn": "VARCHAR", "doNotPerform": "BOOLEAN",
    },
    "Medication": {"id": "VARCHAR", "code": _CODE},
    "Procedure": {
        **_EVENT, "code": _CODE, "performedDateTime": "VARCHAR", "performedPeriod": _PERIOD,
    },
}  # fmt: skip
_NOT = "('entered-in-error', 'cancelled', 'not-done', 'preparation', 'planned', 'draft', 'refuted')"
_TYPES: dict[View, str] = {
    "person": "Patient", "death": "Patient", "observation": "Encounter", "visit": "Encounter",
    "condition": "Condition", "measurement": "Observation", "drug": "MedicationRequest",
    "procedure": "Procedure",
}  # fmt: skip
_STARTS = {  # where the time of a resource may be
    "Encounter": ("period.start",),
    "Condition": ("onsetDateTime", "onsetPeriod.start", "recordedDate"),
    "Observation": ("effectiveDateTime", "effectivePeriod.start", "effectiveInstant"),
    "MedicationRequest": ("authoredOn",),
    "Procedure": ("performedDateTime", "performedPeriod.start"),
}
_STOPS = {"Encounter": "period.end", "Condition": "abatementDateTime"}
LARGEST, LONGEST = 256 << 20, 32 << 20  # bytes of a bundle, and of one line of NDJSON


def files_of(folder: Path) -> list[Path]:
    """The files that may hold resources, in order."""
    endings = (".ndjson", ".ndjson.gz", ".jsonl", ".jsonl.gz", ".json")
    found = [path for path in sorted(folder.rglob("*")) if path.name.lower().endswith(endings)]
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


@dataclass(frozen=True)
class Fhir:
    """The resources in some files."""

    ask: Ask
    files: Sequence[Path]
    postgres: bool = False

    # --- resources ----------------------------------------------------------------------------------------------------

    def resources(self, kind: str) -> str:
        """The fields ``r`` of every resource of one type, and the name ``u`` that others call it by."""
        fields = quoted(json.dumps(_FIELDS[kind]))
        named = [path for path in self.files if _may_hold(path, kind)]
        lines = [path for path in named if path.suffix.lower() != ".json"]
        wholes = [path for path in named if path not in lines]
        parts = [f"SELECT doc AS x, NULL AS u FROM {_lines(lines)}"] if lines else []
        if wholes:
            entries = "json_transform(doc -> 'entry', '[\"JSON\"]')"
            alone = "[json_object('resource', doc)]"
            kept = f"CASE WHEN doc ->> 'resourceType' = 'Bundle' THEN {entries} ELSE {alone} END"
            inside = f"SELECT unnest({kept}) AS e FROM {_wholes(wholes)}"
            parts.append(f"SELECT e -> 'resource' AS x, e ->> 'fullUrl' AS u FROM ({inside})")
        if not parts:
            parts = ["SELECT NULL::JSON AS x, NULL::VARCHAR AS u WHERE false"]
        return (
            f"(SELECT json_transform(x, {fields}) AS r, u FROM ({' UNION ALL '.join(parts)}) "
            f"WHERE x ->> 'resourceType' = '{kind}')"
        )

    # --- views --------------------------------------------------------------------------------------------------------

    def view(self, name: View) -> str:
        """The relation of a view."""
        kind = _TYPES[name]
        if name == "person":
            born = [f"TRY_CAST(substr(r.birthDate, {at}, {n}) AS BIGINT)" for at, n in _YMD]
            day = f"{born[0]} * 10000 + coalesce({born[1]}, 7) * 100 + coalesce({born[2]}, 1)"
            sex = "CASE WHEN r.gender IN ('male', 'female', 'other') THEN r.gender END"
            person = f"coalesce(r.id, {_tail('u')})"
            return (
                f"SELECT {person} AS person, min({day}) AS born, min({sex}) AS sex FROM "
                f"{self.resources(kind)} WHERE {person} IS NOT NULL GROUP BY 1"
            )
        if name == "death":
            died = "r.deceasedDateTime IS NOT NULL OR r.deceasedBoolean"
            return (
                f"SELECT coalesce(r.id, {_tail('u')}) AS person, min({_when('r.deceasedDateTime')}) "
                f"AS start FROM {self.resources(kind)} WHERE {died} GROUP BY 1"
            )
        if name == "observation":  # FHIR has none: from the first to the last encounter
            visits = self.view("visit")
            shown = "person, min(start) AS start, max(coalesce(stop, start)) AS stop"
            return f"SELECT {shown} FROM ({visits}) GROUP BY person"
        shown, where = self._event(kind)
        if name == "measurement":
            return self._observations(shown, where)
        code = _codes("r.code")
        source = self.resources(kind)
        if name == "visit":
            code = f"list_concat([r.class.system || '|' || r.class.code], {_codes_of_several('r.type')})"
        if name == "drug":
            where += " AND NOT coalesce(r.doNotPerform, false)"
            code = f"list_concat({_codes('r.medicationCodeableConcept')}, m.codes)"
            drugs = (
                f"SELECT coalesce(r.id, {_tail('u')}) AS id, any_value({_codes('r.code')}) AS codes"
            )
            drugs += f" FROM {self.resources('Medication')} GROUP BY 1"
            reference = _tail("r.medicationReference.reference")
            source += f" x LEFT JOIN ({drugs}) m ON m.id = {reference}"
        return f"SELECT {shown}, {code} AS codes FROM {source} WHERE {where}"

    def _event(self, kind: str) -> tuple[str, str]:
        """Whose an event is and when it was; and whether it counts."""
        stop = _when(f"r.{_STOPS[kind]}") if kind in _STOPS else "NULL::TIMESTAMP"
        person = _tail("r.subject.reference")
        shown = f"{person} AS person, {_start(kind)} AS start, {stop} AS stop"
        return shown, f"coalesce({_state(kind)}, '') NOT IN {_NOT}"

    def _observations(self, shown: str, where: str) -> str:
        """An observation's own value, and those of its components, each under its own code."""
        parts = (
            f"SELECT {shown}, r AS v FROM {self.resources('Observation')} WHERE {where}",
            f"SELECT {shown}, unnest(r.component) AS v FROM {self.resources('Observation')} "
            f"WHERE {where} AND len(r.component) > 0",
        )
        quantity = "v.valueQuantity"
        found = (
            f"person, start, stop, {_codes('v.code')} AS codes, "
            f"{_codes('v.valueCodeableConcept')} AS results, "
            f"coalesce({quantity}.value, v.valueInteger) AS value, 0 AS unit_id, "
            f"coalesce({quantity}.code, {quantity}.unit, '') AS unit_text"
        )
        return " UNION ALL ".join(f"SELECT {found} FROM ({part})" for part in parts)

    # --- concepts -----------------------------------------------------------------------------------------------------

    def match(self, sets: Sequence[Concepts], column: Literal["code", "value"] = "code") -> str:
        """Whether an event, or its coded value, has one of the codes."""
        if any(one.every for one in sets):
            return "true"
        codes = [
            quoted(f"{system}|{code}")
            for one in sets
            for vocabulary, several in one.codes.items()
            for system in SYSTEMS.get(vocabulary, (vocabulary,))
            for code in several
        ]
        held = "e.codes" if column == "code" else "e.results"
        return f"coalesce(list_has_any({held}, [{', '.join(codes)}]), false)" if codes else "false"

    def absent(self, concepts: Concepts) -> list[str]:
        """What FHIR cannot look up."""
        found = [
            f"vocabulary {name!r} is not known; write its FHIR system, such as http://loinc.org"
            for name in concepts.codes
            if name not in SYSTEMS and ":" not in name
        ]
        if concepts.omop and not concepts.codes:
            found.append(f"{concepts.words}: FHIR has no concept ids; give codes beside them")
        if concepts.descendants:
            found.append(f"FHIR has no hierarchy for descendants of {concepts.words}; list them")
        return found

    def unit_name(self, unit_id: int) -> str:
        """FHIR's units are texts."""
        return ""

    def text(self, value: str) -> str:
        """An SQL string."""
        return quoted(value)

    # --- faults -------------------------------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Files and resources that do not follow the profile, counted."""
        told: dict[str, int] = {}
        for reader, what in ((_lines, "lines"), (_wholes, "files")):
            several = [path for path in self.files if (path.suffix == ".json") == (what == "files")]
            if several:
                strange = "count(*) FILTER (WHERE doc ->> 'resourceType' IS NULL)"
                found = self._counts(f"SELECT {strange} FROM {reader(several)}")
                told[f"{what} are no FHIR resource"] = found[0]
        person, known = _tail("r.subject.reference"), f"SELECT person FROM ({self.view('person')})"
        for kind in _STARTS:
            told |= self._told(kind, {
                "are entered in error, cancelled or not done, and do not count":
                    f"{_state(kind)} IN {_NOT}",
                "name no patient": f"{person} IS NULL",
                "name a patient who is not here": f"{person} NOT IN ({known})",
                "have no time": f"{_start(kind)} IS NULL",
            } | (_VALUELESS if kind == "Observation" else {}))  # fmt: skip
        died = "(r.deceasedDateTime IS NOT NULL OR r.deceasedBoolean)"
        told |= self._told("Patient", {
            "have no birth date": "r.birthDate IS NULL",
            "died, and it is not said when: their outcome is unknown":
                f"{died} AND {_when('r.deceasedDateTime')} IS NULL",
        })  # fmt: skip
        return [f"{n:,} {words}" for words, n in told.items() if n]

    def _told(self, kind: str, rules: Mapping[str, str]) -> dict[str, int]:
        """How many resources of a type each rule is true of, and how many repeat an id."""
        counts = [f"count(*) FILTER (WHERE {rule})" for rule in rules.values()]
        counts.append("count(r.id) - count(DISTINCT r.id)")
        found = self._counts(f"SELECT {', '.join(counts)} FROM {self.resources(kind)}")
        words = [f"{kind} resources {words}" for words in (*rules, "repeat another's id")]
        return dict(zip(words, found, strict=True))

    def _counts(self, query: str) -> list[int]:
        return [int(str(n)) for n in self.ask(query)[0]]


_OTHERS = {
    *_FIELDS, "AllergyIntolerance", "CarePlan", "CareTeam", "Claim", "Coverage", "Device",
    "DiagnosticReport", "DocumentReference", "ExplanationOfBenefit", "ImagingStudy", "Immunization",
    "Location", "MedicationAdministration", "Organization", "Practitioner", "PractitionerRole",
    "Provenance", "Specimen", "SupplyDelivery",
}  # fmt: skip
_YMD = ((1, 4), (6, 2), (9, 2))


_VALUELESS = {
    "have a number without a unit": "r.valueQuantity.value IS NOT NULL AND "
    "coalesce(r.valueQuantity.code, r.valueQuantity.unit, '') = ''",
    "have no value": "coalesce(r.valueQuantity.value, r.valueInteger) IS NULL AND "
    "coalesce(len(r.component), 0) = 0 AND r.valueCodeableConcept IS NULL",
}


def _start(kind: str) -> str:
    return f"coalesce({', '.join(_when(f'r.{at}') for at in _STARTS[kind])}, NULL)"


def _state(kind: str) -> str:
    return "r.verificationStatus.coding[1].code" if kind == "Condition" else "r.status"


def _may_hold(path: Path, kind: str) -> bool:
    """Whether a file may hold a type: bulk exports name a file by the one type that is in it."""
    named = re.match(r"[A-Z][A-Za-z]+(?=[^A-Za-z])", path.name)
    return path.suffix == ".json" or named is None or named.group() not in _OTHERS - {kind}


def _paths(files: Sequence[Path]) -> str:
    return "[" + ", ".join(map(literal_path, files)) + "]"


def _lines(files: Sequence[Path]) -> str:
    reader = f"read_ndjson_objects({_paths(files)}, ignore_errors = true, maximum_object_size = {LONGEST})"
    return f"(SELECT json AS doc FROM {reader})"


def _wholes(files: Sequence[Path]) -> str:
    large = [path.name for path in files if path.stat().st_size > LARGEST]
    if large:
        raise DataError(f"{large[0]}: larger than {LARGEST >> 20} MB; export it as NDJSON")
    text = "ltrim(try(decode(content)), chr(65279))"  # without a byte order mark
    doc = f"CASE WHEN json_valid({text}) THEN {text}::JSON END"
    return f"(SELECT {doc} AS doc FROM read_blob({_paths(files)}))"


def _codes(field: str) -> str:
    return f"[c.system || '|' || c.code FOR c IN {field}.coding]"


def _codes_of_several(field: str) -> str:
    return f"flatten([[c.system || '|' || c.code FOR c IN t.coding] FOR t IN {field}])"


def _tail(reference: str) -> str:
    """The id at the end of a reference: Patient/7, urn:uuid:7, https://server/Patient/7/_history/2."""
    return f"nullif(regexp_extract({reference}, '([^/:|]+)(/_history/.*)?$', 1), '')"


def _when(text: str) -> str:
    """A dateTime as written, whatever its precision."""
    whole = f"CASE length({text}) WHEN 4 THEN {text} || '-01-01' WHEN 7 THEN {text} || '-01' ELSE left({text}, 19) END"
    return in_use(f"TRY_CAST({whole} AS TIMESTAMP)")
