"""Consent, the cohort rule and tombstones: who passes the wall, in files and in memory alike."""

import json
from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.starter import write_starter

from suture.engine.conduct import run
from suture.engine.federation import load_site, survey
from suture.errors import DataError, LedgerError, StudyError
from suture.privacy.ledger.ledger import Ledger
from suture.schema.table import Condition, Schema
from suture.site.cohort import count_training_patients, load
from suture.site.gate import erase_at_site, erased_keys, passage_key, read_consent, tombstone
from suture.site.reading import Passage, among, hashed
from suture.site.sources import ConsentSpec
from suture.study import Study

KEY = passage_key(bytes(32))
TODAY = date(2026, 6, 1)
SCHEMA = {"patient": "id", "features": {"age": {"kind": "number", "low": 0, "high": 120}}}


def who(keys, names):
    return {name for name in names if among(hashed([name], KEY), keys)[0]}


def consents(tmp_path, lines, study="cardio", today=TODAY, **columns):
    path = tmp_path / "consent.csv"
    path.write_text("id,study,given,withdrawn\n" + "\n".join(lines) + "\n")
    columns = columns or {"study": "study", "from": "given", "withdrawn": "withdrawn"}
    spec = ConsentSpec.model_validate({"path": str(path), "patient": "id", **columns})
    found = read_consent(spec, study=study, today=today, key=KEY, site="boston")
    return (*(who(keys, "abcdefgh") for keys in found[:2]), *found[2:][: bool(found[2])])


LINES = [
    "a,cardio,2026-01-01,",
    "b,cardio,2026-01-01,2026-06-01",  # withdrawn today
    "c,cardio,2026-01-01,2026-06-02",  # withdraws tomorrow
    "d,cardio,2026-06-02,",  # from tomorrow
    "e,sepsis,2026-01-01,",  # another study
    "f,cardio,2025-01-01,2025-06-01",
    "f,cardio,2026-02-01,",  # given again
    "g,cardio,2026-01-01,",
    "g,cardio,,2026-03-01",  # a withdrawal on a row of its own
    "h,cardio,,",  # no date: not given
]


def test_who_consents_today(tmp_path):
    assert consents(tmp_path, LINES) == ({"a", "c", "f"}, {"b", "g"})
    assert consents(tmp_path, LINES, today=date(2026, 6, 2)) == ({"a", "d", "f"}, {"b", "c", "g"})
    assert consents(tmp_path, LINES, study="sepsis") == ({"e"}, set())
    assert consents(tmp_path, LINES, study="other") == (set(), set())


def test_columns_that_are_not_there_ask_for_less(tmp_path):
    assert consents(tmp_path, LINES, study="x", **{"from": "given"})[0] == set("abcefg")
    assert consents(tmp_path, ["a,cardio,,", ",cardio,,"], withdrawn="withdrawn")[0] == {"a"}


def test_a_date_that_cannot_be_read_keeps_its_patient_out_and_nobody_else(tmp_path):
    found = consents(tmp_path, [*LINES, "a,cardio,2026-01-01,31/05/26"])
    assert found[:2] == ({"c", "f"}, {"a", "b", "g"})
    assert "column 'withdrawn' (withdrawn): 1 rows with something else than a date" in found[2][0]
    assert "31/05" not in found[2][0]
    found = consents(tmp_path, [*LINES, "a,cardio,yes,", "c,cardio,soon,", "e,sepsis,soon,"])
    assert found[0] == {"f"}
    assert "column 'given' (from): 3 rows" in found[2][0]
    with pytest.raises(DataError, match="'assent' is missing"):
        consents(tmp_path, LINES, **{"from": "assent"})


days = st.one_of(st.none(), st.integers(-40, 40))


@given(st.lists(st.tuples(st.sampled_from("abcd"), days, days), min_size=1, max_size=12))
def test_the_latest_word_counts(tmp_path_factory, rows):
    def write(day):
        return "" if day is None else str(TODAY + timedelta(days=day))

    folder = tmp_path_factory.mktemp("consent")
    found, _ = consents(folder, [f"{p},cardio,{write(g)},{write(w)}" for p, g, w in rows])
    for patient in "abcd":
        given_days = [g for p, g, _ in rows if p == patient and g is not None and g <= 0]
        ended = [w for p, _, w in rows if p == patient and w is not None and w <= 0]
        assert (patient in found) == (
            bool(given_days) and max(given_days) > max(ended, default=-(10**6))
        )


# --- the passage ------------------------------------------------------------------------------------------------------


def table(tmp_path, kind):
    rows = [("p1", 30), ("p1", 31), ("p2", 40), ("p3", 90), ("p4", 17), ("p5", 50), ("p6", "")]
    if kind == "memory":
        ages = np.array([np.nan if age == "" else age for _, age in rows], float)
        return {"id": np.array([p for p, _ in rows]), "age": ages, "ill": np.arange(len(rows)) % 2}
    path = tmp_path / "rows.csv"
    path.write_text(
        "id,age,ill\n" + "".join(f"{p},{age},{i % 2}\n" for i, (p, age) in enumerate(rows))
    )
    if kind == "parquet":
        import duckdb

        duckdb.sql(f"COPY (SELECT * FROM '{path}') TO '{tmp_path}/rows.parquet'")
        return str(tmp_path / "rows.parquet")
    return str(path)


@pytest.mark.parametrize("kind", ["memory", "csv", "parquet"])
def test_only_those_who_may_pass_are_counted_and_read(tmp_path, kind):
    source = table(tmp_path, kind)
    adults = Schema.parse({**SCHEMA, "include": [{"column": "age", "min": 18, "max": 89}]})
    passage = Passage(
        KEY, hashed(["p1", "p2", "p4", "p5", "p6"], KEY), hashed(["p3"], KEY), hashed(["p2"], KEY)
    )
    options = {"site": "a", "holdout": 0.0, "split_key": "k"}
    assert count_training_patients(source, Schema.parse(SCHEMA), **options) == 6
    assert count_training_patients(source, adults, **options) == 3  # p1, p2, p5
    assert count_training_patients(source, Schema.parse(SCHEMA), **options, passage=passage) == 4
    assert count_training_patients(source, adults, **options, passage=passage) == 2
    data = load(source, adults, "ill", **options, passage=passage)
    assert (data.train.patients, data.train.rows) == (2, 3)
    assert sorted(data.train.x[:, 0].tolist()) == pytest.approx(
        [30 / 60 - 1, 31 / 60 - 1, 50 / 60 - 1]
    )
    assert passage.tally == {
        "rows": 7, "rows outside the cohort rule": 3, "patients": 6, "patients erased": 1,
        "patients without consent": 0, "patients who withdrew": 1,
    }  # fmt: skip


def test_rules_on_texts_and_open_ranges(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,ward,age,ill\n1,icu,20,0\n2,it's,30,1\n3,,40,0\n4,ICU,50,1\n5, icu ,60,0\n")
    for rule, expected in (
        ([{"column": "ward", "values": ["icu", "it's"]}], 3),
        ([{"column": "age", "min": 40}], 3),
        ([{"column": "age", "max": 20}], 1),
        ([{"column": "age", "max": 40}, {"column": "ward", "values": ["icu"]}], 1),
    ):
        schema = Schema.parse({**SCHEMA, "include": rule})
        assert (
            count_training_patients(str(path), schema, site="a", holdout=0.0, split_key="k")
            == expected
        )


@pytest.mark.parametrize(
    "wrong",
    [{"column": "age"}, {"column": "age", "min": 2, "max": 1}, {"column": "age", "values": []},
     {"column": "age", "min": 1, "values": ["x"]}, {"column": "", "min": 1}, {"column": "age", "sql": "1=1"}],
)  # fmt: skip
def test_rules_that_say_nothing_or_too_much(wrong):
    with pytest.raises(StudyError, match=r"schema\.include"):
        Schema.parse({**SCHEMA, "include": [wrong]})
    assert Condition(column="age", min=18).words == "age from 18"


def test_consent_needs_a_patient_column(tmp_path):
    schema = Schema.parse({"features": SCHEMA["features"]})
    with pytest.raises(StudyError, match=r"set schema\.patient"):
        count_training_patients(
            table(tmp_path, "csv"),
            schema,
            site="a",
            holdout=0.0,
            split_key="k",
            passage=Passage(KEY, hashed(["p1"], KEY)),
        )


# --- tombstones -------------------------------------------------------------------------------------------------------


def test_a_tombstone_is_keyed_chained_and_written_once():
    ledger = Ledger.open(None, "boston")
    first, new = erase_at_site(ledger, bytes(32), "p2")
    again, newer = erase_at_site(ledger, bytes(32), " p2 ")
    assert (new, newer, again.seq) == (True, False, first.seq)
    assert "p2" not in first.event
    assert tombstone(bytes(32), "p2") != tombstone(b"x" * 32, "p2")
    assert who(erased_keys(ledger, bytes(32)), ["p1", "p2"]) == {"p2"}
    with pytest.raises(
        LedgerError, match="1 of 1 erased patients were marked under another secret"
    ):
        erased_keys(ledger, b"x" * 32)


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_a_run_uses_only_consenting_patients_and_logs_the_rest_at_the_site(tmp_path):
    write_starter(tmp_path, files=True, patients=600)
    study = Study.from_toml(tmp_path / "study.toml").replace(
        model={"hidden": [4]}, method={"rounds": 2, "local_epochs": 1}
    )
    name, path = study.sites[0].name, study.sites[0].data.path
    column = study.table.patient
    lines = (tmp_path / path).read_text().splitlines()
    at = lines[0].split(",").index(column)
    patients = sorted({line.split(",")[at] for line in lines[1:]})
    agreed = patients[::2]
    (tmp_path / "consent.csv").write_text(
        "patient,study\n" + "".join(f"{p},{study.name}\n" for p in agreed)
    )
    fields = study.to_dict()
    fields["sites"][0]["consent"] = {"path": "consent.csv", "patient": "patient", "study": "study"}
    asked = Study(**fields)
    result = run(asked, base=tmp_path)
    assert result.data["cohort"]["sites"][name]["train"] == asked.declared(
        name
    )  # nothing counted is in the result
    here = survey(asked, tmp_path, asked.seed)
    loaded = load_site(asked, here, here.places[0]).loaded
    assert loaded.patients == len(agreed)
    ledger = Ledger.read(tmp_path / ".suture" / name / "ledger.sqlite")
    tally = json.loads(ledger.notes("consent")[0].event)
    assert tally["patients"] == len(patients)
    assert tally["patients without consent"] == len(patients) - len(agreed)
    ledger.close()
    assert Study.from_text(asked.to_toml()) == asked
