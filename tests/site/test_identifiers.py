"""Column names in eight languages, values in every spelling, and people who hide in odd places."""

import csv
import json
from datetime import date, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stdnum import iban, luhn
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.pl import pesel

from suture.errors import DataError, StudyError
from suture.site.deid import apply, redactor, scan
from suture.site.identifiers import SAFE, age_in, fold, hint_of, measured, year_in
from suture.site.sources import SourceSpec


def write(path, table, separator=",", encoding="utf-8"):
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def verdicts(path, **options):
    return {f.column: f.action for f in scan(path, **options)[0]}


# What the issue found kept, each with what it is.
ISSUE = {
    "name": "Nachname Vorname Hausarzt nom prenom PAT_NAME PAT_LAST_NM EMERG_CONTACT",
    "geography": "Strasse Ort adresse ville HOME_CITY",
    "age": "Alter age_ans",
}


@pytest.mark.parametrize(
    ("name", "hint"), [(name, hint) for hint, names in ISSUE.items() for name in names.split()]
)
def test_names_that_the_issue_found_kept(name, hint):
    for spelled in (name, name.lower(), name.upper(), f"{name}_1", f"pat_{name}"):
        assert hint_of(spelled) == hint, spelled


def test_the_table_of_the_issue(tmp_path):
    table = {
        "Nachname": ["Huber", "Zirkelbach", "Ostermann"],
        "Vorname": ["Sepp", "Traudl", "Vinzenz"],
        "Strasse": ["Hauptstr. 5", "Ring 7", "Weg 1"],
        "Ort": ["Wels", "Steyr", "Enns"],
        "Hausarzt": ["Dr. Gamsjaeger", "Dr. Hasibeder", "Dr. Hasibeder"],
        "nom": ["Lefort", "Bazin", "Quesnel"],
        "prenom": ["Aude", "Gildas", "Tanguy"],
        "adresse": ["3 rue X", "4 rue Y", "5 rue Z"],
        "ville": ["Dole", "Gap", "Albi"],
        "PAT_NAME": ["DOE, J", "ROE, R", "POE, E"],
        "PAT_LAST_NM": ["DOE", "ROE", "POE"],
        "HOME_CITY": ["Nahant", "Hull", "Saugus"],
        "EMERG_CONTACT": ["J. Doe", "R. Roe", "E. Poe"],
        "Alter": ["91", "45", "103"],
        "age_ans": ["95 ans", "60 ans", "89 ans"],
        "age_group": ["90-99", "20-29", "100+"],
        "born": ["02-JUN-52", "03-JAN-48", "12-MAR-61"],
        "bp": ["120/80", "135/85", "110/70"],
    }
    path = write(tmp_path / "t.csv", table)
    report = apply(path, tmp_path / "out.csv", today=date(2026, 6, 1))
    assert report["unsure"] == []
    assert read(tmp_path / "out.csv") == {
        "Alter": ["90+", "45", "90+"],
        "age_ans": ["90+", "60", "89"],
        "age_group": ["90+", "20-29", "90+"],
        "born": ["1952", "1948", "1961"],
        "bp": ["120/80", "135/85", "110/70"],
    }


@pytest.mark.parametrize(
    ("text", "year"),
    [
        ("02-JUN-52", 1952),
        ("3. Mai 1952", 1952),
        ("1952/06/02", 1952),
        ("2 de junio de 1952", 1952),
        ("2 czerwca 1952 r.", 1952),
        ("1er août 1952", 1952),
        ("12 mrt 2003", 2003),
        ("Mon, 3 February 2020", 2020),
        ("02.06.26", 2026),
        ("02.06.27", 1927),
        ("19520602", 1952),
        ("02061952", 1952),
        ("195206021230", 1952),
        ("1952-06-02T10:30:00Z", 1952),
        ("06/1952", 1952),
        ("120/80", None),
        ("45/45/2000", None),
        ("01 23 45 67 89", None),
        ("1952", None),
        ("19148", None),
        ("Heart Failure", None),
    ],
)
def test_years_of_dates(text, year):
    assert year_in(text, 2026) == year


def test_a_column_named_as_a_date_may_hold_serials_years_and_seconds():
    day = date(1952, 6, 2)
    assert year_in(str((day - date(1899, 12, 30)).days), 2026, named=True) == 1952
    assert year_in("1952", 2026, named=True) == 1952
    assert year_in("1600000000", 2026, named=True) == 2020
    assert year_in("7", 2026, named=True) is None


@given(st.dates(date(1900, 1, 1), date(2026, 12, 31)))
def test_every_day_in_every_form_gives_its_year(day):
    for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d-%b-%Y", "%d %B %Y", "%Y%m%d", "%B %d, %Y"):
        assert year_in(day.strftime(form), 2026) == day.year
    serial = (day - date(1899, 12, 30)) // timedelta(1)
    if serial >= 3000:  # shorter ones are years
        assert year_in(str(serial), 2026, named=True) in (day.year, serial)


@given(st.integers(0, 125), st.sampled_from(["", " years", " Jahre", " ans", " lat", "y", " años"]))
def test_no_age_over_89_is_written(age, unit):
    assert age_in(f"{age}{unit}") == ("90+" if age > 89 else str(age))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("90-99", "90+"),
        ("85-94", "85+"),
        ("80-89", "80-89"),
        ("90 ans et plus", "90+"),
        (">= 95", "90+"),
        ("<90", "<90"),
        ("over 91", "90+"),
        ("14 months", "14 months"),
        ("1100 months", "90+"),
        ("3 weeks", "3 weeks"),
        ("ninety", None),
    ],
)
def test_ages_in_other_spellings(text, shown):
    assert age_in(text) == shown


def test_an_age_in_months_is_measured_in_months(tmp_path):
    path = write(
        tmp_path / "t.csv", {"age_months": ["100", "1079", "1068"], "sex": ["f", "m", "f"]}
    )
    apply(path, tmp_path / "out.csv")
    assert read(tmp_path / "out.csv")["age_months"] == ["100", "90+", "1068"]


@pytest.mark.parametrize(
    "text", ["120/80", "5,4", "<0.5 mg/dL", "1:80", "3 mmol/L", "1e-5", "12:30"]
)
def test_measurements_are_recognised(text):
    assert measured(text)


@pytest.mark.parametrize("text", ["12 Lee", "Smith", "90-99", "1952-06-02", "a@b.org", "12345 Ulm"])
def test_what_is_no_measurement(text):
    assert not measured(text)


NUMBERS = {
    "PESEL": ("ssn", [f"{p}{pesel.calc_check_digit(p)}" for p in map(str, range(4405140130, 4405140170))]),
    "NHS": ("record_number", [f"{p}{c}" for p in map(str, range(943476590, 943476660))
                              if (c := nhs.checksum(p + "0") and str(11 - nhs.checksum(p + "0"))) and len(c) == 1]),
    "IMEI": ("device", [p + luhn.calc_check_digit(p) for p in map(str, range(49015420323000, 49015420323060))]),
    "IBAN": ("account", [f"DE{iban.calc_check_digits(f'DE00{b}')}{b}" for b in range(370400440532013000, 370400440532013030)]),
    "NIR": ("ssn", [p + nir.calc_check_digits(p) for p in map(str, range(2950109126111, 2950109126151))]),
}  # fmt: skip


@pytest.mark.parametrize("kind", NUMBERS)
def test_check_digits_speak_whatever_the_column_is_called(tmp_path, kind):
    category, numbers = NUMBERS[kind]
    path = write(tmp_path / "t.csv", {"creatinine": numbers, "wave": numbers})
    assert {(f.action, f.category) for f in scan(path)[0]} == {("drop", category)}


def test_unrecognised_text_is_never_kept(tmp_path, suture_command):
    words = [f"{a}{b}or" for a in "BDFGKLMNPR" for b in ("al", "en", "ir", "ov")]
    path = write(tmp_path / "t.csv", {"xq": words, "grade": ["1", "2"] * 20})
    assert verdicts(path) == {"xq": "look", "grade": "keep"}
    done = suture_command("deid", "scan", path, "--json")
    assert (done.returncode, json.loads(done.stdout)["unsure"]) == (8, ["xq"])
    assert suture_command("deid", "scan", path, "--drop", "xq").returncode == 0
    done = suture_command("deid", "apply", path, "--out", tmp_path / "out.csv")
    assert done.returncode == 3
    assert "xq" in done.stderr
    assert "Balor" not in done.stderr
    assert not (tmp_path / "out.csv").exists()
    report = apply(path, tmp_path / "out.csv", drop_unsure=True)
    assert report["unsure"] == ["xq"]
    assert list(read(tmp_path / "out.csv")) == ["grade"]
    report = apply(path, tmp_path / "kept.csv", keep=["xq"])
    assert (report["unsure"], report["kept_by_steward"]) == ([], ["xq"])
    assert read(tmp_path / "kept.csv")["xq"] == words


def test_separator_encoding_decimal_and_missing(tmp_path, suture_command):
    table = {
        "Nachname": ["Müßig", "Čapek"],
        "Größe": ["1,80", "1,75"],
        "Kreatinin": ["0,9", "k.A."],
    }
    path = write(tmp_path / "t.csv", {**table, "Nachname": ["Müßig", "Hör"]}, ";", "latin-1")
    options = ("--separator", ";", "--encoding", "latin-1", "--decimal", ",", "--missing", "k.A.")
    done = suture_command("deid", "scan", path, *options, "--json")
    assert done.returncode == 0, done.stderr
    found = {row["column"]: row["action"] for row in json.loads(done.stdout)["columns"]}
    assert found == {"Nachname": "drop", "Größe": "keep", "Kreatinin": "keep"}
    done = suture_command("deid", "scan", path, "--encoding", "latin-1")
    assert done.returncode == 3
    assert "--separator" in done.stderr
    done = suture_command("deid", "scan", path, "--encoding", "ebcdic")
    assert done.returncode == 2
    assert "encoding" in done.stderr


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_names_in_one_row_of_a_hundred_of_a_number(tmp_path):
    values = [f"{i / 10}" for i in range(300)]
    values[17], values[140], values[250] = "Kowalczyk", "see Thistlewood", "Birk"
    assert verdicts(write(tmp_path / "t.csv", {"creatinine": values})) == {"creatinine": "look"}


def test_an_identifier_in_a_short_comment_column(tmp_path):
    values = ["ok", "none", "stable"] * 100
    values[11] = "MRN 8812345"
    assert verdicts(write(tmp_path / "t.csv", {"comments": values})) == {"comments": "drop"}


@pytest.mark.parametrize(
    "hidden",
    ["jo@\u200bexample.org", "jо@example.org", "ｊｏ@example.org", "jo@exam\u00adple.org"],
)
def test_invisible_and_foreign_letters_hide_nothing(tmp_path, hidden):
    values = ["mild", "none", "severe"] * 60
    values[50] = f"mild, write to {hidden}"
    found = scan(write(tmp_path / "t.csv", {"pain": values}))[0][0]
    assert (found.action, found.category) == ("drop", "email")


def test_a_foreign_letter_in_a_column_s_name():
    assert hint_of("Nаchnаme") == "name"  # two Cyrillic letters
    assert hint_of("na\u200bme") == "name"


@pytest.mark.parametrize("name", ["Maria Garcia", "smith_john", "Kowalska Anna", "jo@example.org"])
def test_people_in_the_header_are_refused_and_not_shown(tmp_path, name):
    path = write(tmp_path / "t.csv", {name: ["1", "2"], "x": ["1", "2"]})
    with pytest.raises(DataError, match="header") as caught:
        scan(path)
    assert name not in str(caught.value)


def test_coordinates_and_ages_under_another_name(tmp_path):
    table = {
        "v1": [f"{48 + i / 977:.5f}" for i in range(100)],
        "v2": [str((37 * i) % 104) for i in range(100)],
        "v3": [str(100_000 + 31 * i) for i in range(100)],
        "v4": [f"{i / 7:.2f}" for i in range(100)],
        "pas_number": [str(1_000_000 + 7 * i) for i in range(100)],
    }
    found = verdicts(write(tmp_path / "t.csv", table))
    assert found == {"v1": "look", "v2": "look", "v3": "drop", "v4": "keep", "pas_number": "drop"}


PLAIN = st.sampled_from(["Male", "Female", "unknown"])
PERSON = st.from_regex(r"[A-Z][a-z]{3,9} [A-Z][a-z]{4,9}", fullmatch=True)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(PERSON, PLAIN, st.integers(0, 120)), min_size=3, max_size=40),
    st.sampled_from(["Patientenname", "nom_patient", "name", "naam", "xq"]),
)
def test_no_cell_of_an_identifier_is_in_the_copy(tmp_path, rows, column):
    people, sexes, ages = zip(*rows, strict=True)
    table = {column: people, "sex": sexes, "wiek": [str(age) for age in ages]}
    out = tmp_path / "out.csv"
    for path in tmp_path.iterdir():
        path.unlink()
    apply(write(tmp_path / "t.csv", table), out, drop_unsure=True)
    written = out.read_text() + (tmp_path / "out.csv.report.json").read_text()
    assert not any(person in written for person in people)
    assert read(out)["wiek"] == ["90+" if age > 89 else str(age) for age in ages]


def test_redaction_blacks_out_what_it_knows(tmp_path):
    notes = [
        "Seen by Dr. Okonkwo, pain since monday, call 617-555-0199 or jo@example.org",
        "pt szczepanska stable, RR 120/80, seen 03/04/2021, MRN 8812345",
        "Thistlewood improved, 93-year-old, pain gone, stable and pain free since seen",
    ]
    table = {"surname": ["Okonkwo", "Szczepanska", "Varga"], "notes": notes, "sex": ["F", "F", "M"]}
    path = write(tmp_path / "t.csv", table)
    assert list(read_copy(path, tmp_path / "dropped.csv", "drop")) == ["sex"]
    texts = read_copy(path, tmp_path / "out.csv", "redact")["notes"]
    assert texts[0] == "Seen by █, pain since monday, call █ or █"
    assert texts[1] == "pt █ stable, █ 120/80, seen █, █"
    assert texts[2].startswith("█ improved, 90+-year-old, pain gone")
    with pytest.raises(StudyError, match="redact"):
        apply(path, tmp_path / "no.csv", text="keep")


def read_copy(path, out, text):
    apply(path, out, text=text)
    return read(out)


@given(st.lists(PERSON, min_size=1, max_size=5))
def test_the_table_s_own_names_are_blacked_out_in_any_letter_case(people):
    redact = redactor(people, ["seen with them today"])
    for person in people:
        for spelled in (person, person.lower(), person.upper()):
            shown = redact(f"seen with {spelled} today").split()
            kept = [word for word in shown if "█" not in word]
            # Words that categories are made of are no names, even if somebody is called so.
            assert all(fold(word) in SAFE | {"seen", "with", "today"} for word in kept)


def test_source_options_are_those_of_a_study():
    assert {"separator", "encoding", "decimal", "missing", "table"} <= set(SourceSpec.model_fields)


def test_a_number_beside_a_street_is_the_house_and_elsewhere_is_looked_at(tmp_path):
    houses = [str(1 + 7 * i % 250) for i in range(100)]
    streets = [f"Rua {'ABCDEFGHIJ'[i % 10]}{i}" for i in range(100)]
    near = {"logradouro": streets, "numero": houses, "peso": ["70"] * 100}
    far = {"logradouro": streets, "peso": ["70"] * 100, "numero": houses}
    assert verdicts(write(tmp_path / "near.csv", near))["numero"] == "drop"
    assert verdicts(write(tmp_path / "far.csv", far))["numero"] == "look"


def test_a_location_is_a_place_unless_its_values_are_of_the_body(tmp_path):
    towns = [f"Town{i % 60}" for i in range(120)]
    table = {"patient_location": towns, "location": ["left", "right"] * 60, "area": ["12.5"] * 120}
    found = verdicts(write(tmp_path / "t.csv", table))
    assert found == {"patient_location": "drop", "location": "keep", "area": "keep"}


def test_the_number_of_a_clinic_that_no_two_rows_share_is_a_persons(tmp_path):
    numbers = [str(1_000_000 + 7 * i) for i in range(100)]
    departments = [str(10 + i % 5) for i in range(100)]
    found = verdicts(
        write(tmp_path / "t.csv", {"clinic_number": numbers, "department_number": departments})
    )
    assert found == {"clinic_number": "drop", "department_number": "keep"}


def test_a_code_in_groups_is_a_code(tmp_path):
    codes = [f"ZZ {i:02d} {(7 * i) % 100:02d} {(3 * i) % 100:02d} T" for i in range(100)]
    pressures = [f"{110 + i % 30}/{70 + i % 20}" for i in range(100)]
    found = verdicts(write(tmp_path / "t.csv", {"xq": codes, "bp": pressures}))
    assert found == {"xq": "drop", "bp": "keep"}


def test_a_language_at_the_end_of_a_name_says_nothing():
    assert [hint_of(name) for name in ("NomFr", "PrenomAr", "name_en", "alt_phone")] == [
        "name", "name", "name", "phone",
    ]  # fmt: skip
