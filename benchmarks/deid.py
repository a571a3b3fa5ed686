"""How many identifiers `suture deid scan` finds, by category and language, on tables whose authors did
not see its rules.

Column names come from public repositories (`deid_headers.toml` beside this file), values from faker's
locales. A source belongs to the development or to the test half by the hash of its repository's name;
results on the test half were first looked at after tuning on the other, and once repaired after. The
"fresh" set was collected later still. The names of both halves were known to the rules' author: see
docs/deidentification.md. The "late" halves were collected and scored before the rules were opened, the
"last" set after they were mended by the late development half. "Blind" tables hold the same kinds of values under
names that say nothing (``c07``).

    python benchmarks/deid.py [--half test] [--rows 300] [--json]
    python benchmarks/deid.py --folder DIR [--half A]

A folder holds tables of another hand, ``labels.csv`` (file, column, language, category; "clinical" is
harmless) and ``halves.csv`` (file, half).

Printed: of the identifier columns, the share that the scan drops or generalises, the share that it
leaves to a person (unsure), and the share kept silently; of the harmless columns, the share taken
wrongly and the share left to a person.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faker import Faker

from suture.site.deid import scan

LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "pt", "pl")
LOCALES = {
    half: dict(zip(LANGUAGES, locales.split(), strict=True))
    for half, locales in (
        ("test", "en_US de_DE fr_FR es_ES it_IT nl_NL pt_BR pl_PL"),
        ("fresh", "en_US de_DE fr_FR es_ES it_IT nl_NL pt_BR pl_PL"),
        ("development", "en_GB de_AT fr_CA es_MX it_IT nl_BE pt_PT pl_PL"),
        ("last", "en_US de_DE fr_FR es_ES it_IT nl_NL pt_BR pl_PL"),
        ("late-test", "en_US de_DE fr_FR es_ES it_IT nl_NL pt_BR pl_PL"),
        ("late-development", "en_GB de_AT fr_CA es_MX it_IT nl_BE pt_PT pl_PL"),
    )
}
CATEGORY = {
    "name": "name", "geo": "geography", "date": "date", "datetime": "date", "age": "date", "phone": "phone",
    "fax": "fax", "email": "email", "ssn": "ssn", "nhs": "record_number", "record": "record_number", "plan": "health_plan",
    "iban": "account", "card": "account", "licence": "licence", "vehicle": "vehicle", "mac": "device", "serial": "device",
    "url": "url", "ip": "ip", "photo": "photo", "uuid": "other", "code": "other", "number": "other", "key": "other",
    "hash": "other", "user": "other", "company": "name", "text": "text",
}  # fmt: skip
Maker = Callable[[Faker, int], str]


def pick(*values: str) -> Maker:
    return lambda fake, row: fake.random_element(values)


SEX = {"de": ("männlich", "weiblich"), "fr": ("homme", "femme"), "es": ("hombre", "mujer"), "it": ("M", "F"),
       "nl": ("man", "vrouw"), "pt": ("masculino", "feminino"), "pl": ("K", "M"), "en": ("Male", "Female")}  # fmt: skip
MAKERS: dict[str, Maker] = {
    "name.first": lambda f, i: f.first_name(),
    "name.last": lambda f, i: f.last_name(),
    "name.full": lambda f, i: f.name(),
    "name.initials": lambda f, i: f.first_name()[0] + "." + f.first_name()[0] + ".",
    "geo.address": lambda f, i: f.address().replace("\n", ", "),
    "geo.street": lambda f, i: f.street_address(),
    "geo.house": lambda f, i: str(f.random_int(1, 250)),
    "geo.city": lambda f, i: f.city(),
    "geo.postcode": lambda f, i: f.postcode(),
    "geo.code": lambda f, i: str(f.random_int(110001, 530010)),
    "date": lambda f, i: f.date_of_birth(maximum_age=100).strftime(DAY[f.locales[0][:2]]),
    "date.year": lambda f, i: str(f.date_of_birth(maximum_age=100).year),
    "datetime": lambda f, i: f.date_time().isoformat(" "),
    "age": lambda f, i: str(f.random_int(0, 103)),
    "phone": lambda f, i: f.phone_number(),
    "fax": lambda f, i: f.phone_number(),
    "email": lambda f, i: f.email(),
    "ssn": lambda f, i: national(f),
    "ssn.digits": lambda f, i: f.ssn().replace("-", ""),
    "nhs": lambda f, i: f.bothify("4#########"),
    "record": lambda f, i: str(1_000_000 + 7 * i + f.random_int(0, 6)),
    "plan": lambda f, i: f.bothify("?#########").upper(),
    "iban": lambda f, i: f.iban(),
    "card": lambda f, i: f.credit_card_number(),
    "licence": lambda f, i: f.bothify("??#######").upper(),
    "vehicle.plate": lambda f, i: f.license_plate(),
    "vehicle.vin": lambda f, i: f.vin(),
    "mac": lambda f, i: f.mac_address(),
    "serial": lambda f, i: f.bothify("SN-????-######").upper(),
    "url": lambda f, i: f.url(),
    "ip": lambda f, i: f.ipv4(),
    "photo": lambda f, i: f.file_path(depth=2, extension="jpg"),
    "uuid": lambda f, i: f.uuid4(),
    "hash": lambda f, i: f.sha256(),
    "code": lambda f, i: f.bothify("??###?##").upper(),
    "number": lambda f, i: str(f.random_int(10_000, 99_999_999)),
    "key": lambda f, i: str(i + 1),
    "user": lambda f, i: f.user_name(),
    "company": lambda f, i: f.company(),
    "text": lambda f, i: f.paragraph(nb_sentences=2),
    "-sex": lambda f, i: f.random_element(SEX[f.locales[0][:2]]),
    "-flag": pick("0", "1"),
    "-blood": pick("A+", "A-", "B+", "0+", "AB+", "0-"),
    "-weight": lambda f, i: f"{f.random_int(400, 1300) / 10}",
    "-height": lambda f, i: str(f.random_int(140, 205)),
    "-icd": lambda f, i: f.bothify("?##.#", letters="ABCEFIJKMN"),
    "-diagnosis": pick("Diabetes", "Hypertension", "Asthma", "COPD", "none", "Arthritis"),
    "-drug": pick("Metformin", "Ramipril", "Ibuprofen", "Paracetamol", "none"),
    "-status": pick("A", "B", "C", "N"),
    "-insurer": pick("AXA", "Allianz", "Generali", "AOK", "CZ", "Mapfre"),
    "-ik": pick("108018007", "109519005", "104212505", "101575519"),
    "-state": lambda f, i: f.random_element(STATES[f.locales[0][:2]]),
    "-country": pick("DE", "FR", "ES", "IT", "NL", "PT", "PL", "GB"),
    "-salutation": pick("Mr", "Mrs", "Ms"),
    "-title": pick("Dr.", "Prof.", ""),
    "-marital": pick("single", "married", "divorced", "widowed"),
    "-race": pick("White", "Black", "Asian", "Other"),
    "-job": lambda f, i: f.random_element(("Teacher", "Nurse", "Driver", "Engineer", "Cook", "Retired")),
    "-dept": pick("Cardiology", "Neurology", "Surgery", "Oncology"),
    "-brand": pick("Opel", "Fiat", "Volvo", "Seat", "Renault"),
    "-color": pick("red", "blue", "green", "black", "white"),
    "-year": lambda f, i: str(f.random_int(1995, 2025)),
    "-cost": lambda f, i: f"{f.random_int(500, 90000) / 100:.2f}",
    "-count": lambda f, i: str(f.random_int(0, 400)),
    "-small": lambda f, i: str(f.random_int(1, 9)),
}  # fmt: skip
STATES = {"en": ("MA", "NY", "CA"), "de": ("Bayern", "Hessen", "Sachsen"), "pt": ("SP", "RJ", "MG"), "fr": ("Bretagne",),
          "es": ("Andalucía",), "it": ("Lazio",), "nl": ("Utrecht",), "pl": ("mazowieckie",)}  # fmt: skip
DAY = {"en": "%m/%d/%Y", "de": "%d.%m.%Y", "fr": "%d/%m/%Y", "es": "%d/%m/%Y", "it": "%d/%m/%Y", "nl": "%d-%m-%Y",
       "pt": "%d/%m/%Y", "pl": "%Y-%m-%d"}  # fmt: skip
BLIND = ("name.full", "name.last", "name.first", "geo.address", "geo.city", "date", "phone", "email", "ssn", "iban", "card",
         "vehicle.plate", "vehicle.vin", "mac", "url", "ip", "photo", "uuid", "licence", "serial", "text", "age")  # fmt: skip


def national(fake: Faker) -> str:
    """The number that the state gives a person, where faker knows it."""
    own = {"pt_BR": "cpf", "pl_PL": "pesel", "es_ES": "nif"}.get(fake.locales[0], "ssn")
    return str(getattr(fake, own)())


def tables(half: str) -> list[tuple[str, str, dict[str, str]]]:
    """(language, source, column -> maker) of one half."""
    path = Path(__file__).with_name("deid_headers.toml")
    found = []
    for source in tomllib.loads(path.read_text(encoding="utf-8"))["source"]:
        odd = hashlib.sha256(source["repo"].encode()).digest()[0] % 2
        side = "test" if odd else "development"
        if {"late": f"late-{side}"}.get(source.get("half", ""), source.get("half", side)) == half:
            found.append((source["lang"], source["repo"], source["columns"]))
    for lang in LOCALES[half] if half in ("test", "development") else ():
        found.append((lang, "blind", {f"c{i:02d}": maker for i, maker in enumerate(BLIND)}))
    return found


def measure(half: str, rows: int, seed: int = 1) -> list[dict[str, str]]:
    """One entry per column: language, source, column, category ("" if harmless), verdict."""
    Faker.seed(seed)
    found = []
    for lang, source, columns in tables(half):
        fake = Faker(LOCALES[half][lang])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(
                    [MAKERS[m](fake, i) for m in columns.values()] for i in range(rows)
                )
            verdicts = {f.column: f for f in scan(path)[0]}
        for column, maker in columns.items():
            category = "" if maker[0] == "-" else CATEGORY[maker.split(".")[0]]
            entry = verdicts[column]
            found.append({"lang": lang, "source": source, "column": column, "maker": maker, "category": category,
                          "verdict": entry.action, "sign": entry.sign, "as": entry.category or ""})  # fmt: skip
    return found


def labelled(folder: Path, half: str) -> list[dict[str, str]]:
    """The same of a folder of tables that another hand wrote and labelled."""
    with (folder / "halves.csv").open(encoding="utf-8") as file:
        files = {row["file"] for row in csv.DictReader(file) if row["half"] == half}
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        labels = [row for row in csv.DictReader(file) if row["file"] in files]
    verdicts = {(name, f.column): f for name in files for f in scan(folder / name)[0]}
    found = []
    for row in labels:
        entry = verdicts[row["file"], row["column"]]
        category = "" if row["category"] == "clinical" else row["category"]
        found.append({"lang": row["language"], "source": row["file"], "column": row["column"], "category": category,
                      "verdict": entry.action, "sign": entry.sign, "as": entry.category or ""})  # fmt: skip
    return found


def shares(found: list[dict[str, str]], key: str, blind: bool) -> dict[str, Counter[str]]:
    """Verdicts on identifier columns by category or language."""
    counted: dict[str, Counter[str]] = {}
    for entry in found:
        if entry["category"] and (entry["source"] == "blind") == blind:
            verdict = {"drop": "found", "generalise": "found"}.get(
                entry["verdict"], entry["verdict"]
            )
            counted.setdefault(entry[key], Counter())[verdict] += 1
    return counted


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--half", default="test")
    asked.add_argument("--folder", type=Path)
    asked.add_argument("--rows", type=int, default=300)
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    source = "names of another hand" if given.folder else "names of public repositories"
    found = labelled(given.folder, given.half) if given.folder else measure(given.half, given.rows)
    if given.json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for blind in (False, True):
        print(f"\n{'values under names that say nothing' if blind else source}, {given.half} half")
        print(f"{'':16}{'columns':>8}{'found':>8}{'unsure':>8}{'kept':>8}")
        for key in ("category", "lang"):
            for name, counts in sorted(shares(found, key, blind).items()):
                total = counts.total()
                row = "".join(f"{counts[v] / total:8.3f}" for v in ("found", "look", "keep"))
                print(f"{name:16}{total:8}{row}")
    safe = [e for e in found if not e["category"]]
    taken = [e for e in safe if e["verdict"] in ("drop", "generalise")]
    acted = [e for e in found if e["verdict"] in ("drop", "generalise")]
    unsure = sum(e["verdict"] == "look" for e in safe)
    print(
        f"\nprecision {1 - len(taken) / len(acted):.3f} ({len(taken)} harmless columns among {len(acted)} taken)"
    )
    print(f"harmless columns: {len(safe)}, taken wrongly {len(taken)}, left to a person {unsure}")
    for e in found:
        if (e["category"] and e["verdict"] in ("look", "keep")) or (
            not e["category"] and e["verdict"] != "keep"
        ):
            kind = e["category"] or "harmless"
            print(
                f"  {e['verdict']:5} {kind:14} {e['lang']} {e['source'][:28]:28} {e['column']:28} {e['sign']}"
            )


if __name__ == "__main__":
    main()
