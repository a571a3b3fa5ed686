"""Bad tables, as hospitals export them: each gives a clear message or a correct draft."""

import datetime
import gzip
import os
import re
import tomllib

import numpy as np
import pandas as pd
import pytest

from suture.errors import DataError, RunError, StudyError, SutureError
from suture.schema.outcome import TWO
from suture.schema.table import Category, Flag, Number
from suture.site.cohort import load
from suture.site.draft import Asked, draft
from suture.study import Study

ROWS = 60


def cycle(*values, rows=ROWS):
    return [values[i % len(values)] for i in range(rows)]


def table(name="x", cells=(), separator=",", head=("id", "died", "age"), end="\n"):
    """60 patients with identifier, outcome, age and one column under test."""
    quote = lambda text: f'"{text}"' if separator in text or "\n" in text else text  # noqa: E731
    lines = [separator.join([*head, quote(name)])]
    for i in range(ROWS):
        row = [f"P{i}", str(i % 2), str(40 + i % 30)][: len(head)]
        lines.append(separator.join([*row, quote(str(cells[i % len(cells)]))]))
    return end.join(lines) + end


def drafted(tmp_path, content, file="rows.csv", **asked):
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return draft({"path": str(path)}, Asked(**{"outcome": "died"} | asked))


def runs(made, tmp_path, patients=50, **numbers):
    """The draft as a study once its gaps are filled, and its rows: what `suture run` would train on."""
    for name, (low, high) in numbers.items():
        made.features[name] = Number(low=low, high=high)
    text = made.text(tmp_path, "fedavg").replace("[schema]\n", "[schema]\n", 1)
    text = text.replace("\n[schema]", f"patients = {patients}\n\n[schema]", 1)
    study = Study.from_text(text)
    source = study.sites[0].data.under(tmp_path)
    found = load(
        source, study.table, study.outcome, site="here", holdout=0.0, split_key="k",
        target=study.target or TWO,
    )  # fmt: skip
    return study, found


def clipped(found):
    return [text for text in found.loaded.warnings if "clipped" in text]


# --- marks for "missing": named, mapped, never clipped ----------------------------------------------------------------

SENTINELS = {
    "-999 in a known measure": ("SYSBP", cycle("120", "135", "-999", "110"), {"-999"}),
    "-999.0 as a float": ("SYSBP", cycle("120.5", "135.0", "-999.0", "110.25"), {"-999"}),
    "9999 in a known measure": ("platelets", cycle("220", "180", "9999", "250"), {"9999"}),
    "0 where nobody can have it": ("chol", cycle("220", "180", "0", "250"), {"0"}),
    "-1 for unknown height": ("Height", cycle("170", "180.3", "-1", "165"), {"-1"}),
    "several codes": ("glucose", cycle("90", "-9", "-999", "9999", "101"), {"-9", "-999", "9999"}),
    "-999 in an unknown number": ("blorb", [*cycle(*map(str, range(20, 40)), rows=59), "-999"], {"-999"}),
    "9999 in an unknown number": ("blorb", [*cycle(*map(str, range(20, 40)), rows=59), "9999"], {"9999"}),
    "-1 among codes": ("Gender", cycle("0", "1", "1", "-1"), {"-1"}),
    "9 among codes of one to two": ("smoker", cycle("1", "2", "2", "9"), {"9"}),
    "99 among codes of one to four": ("educ", cycle("1", "2", "3", "4", "99"), {"99"}),
    "-999 in Fahrenheit": ("temp_f", cycle("98.6", "99.1", "-999", "101"), {"-999"}),
    "999.9 of a monitor": ("hr", cycle("80", "999.9", "92", "71"), {"999.9"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SENTINELS)
def test_a_code_for_missing_is_named_and_never_clipped(tmp_path, case):
    name, cells, codes = SENTINELS[case]
    made = drafted(tmp_path, table(name, cells))
    assert set(made.spec.sentinels[name]) == codes
    _, found = runs(made, tmp_path, **({"blorb": (0, 100)} if name == "blorb" else {}))
    assert not clipped(found)
    share = sum(cells[i % len(cells)].replace(".0", "") in codes for i in range(ROWS)) / ROWS
    assert any(name in text and "without a value" in text for text in found.loaded.warnings)
    assert 0 < share < 1


MARKS = [
    "?",
    "NA",
    "N/A",
    "null",
    "NaN",
    "-",
    ".",
    "#N/A",
    "k.A.",
    "unknown",
    "not recorded",
    "\\N",
]


@pytest.mark.parametrize("mark", MARKS)
def test_a_text_for_missing_is_named(tmp_path, mark):
    made = drafted(tmp_path, table("SYSBP", cycle("120", "135", mark)))
    assert made.spec.missing == (mark,)
    assert isinstance(made.features["SYSBP"], Number)
    _, found = runs(made, tmp_path)
    assert not found.loaded.problems
    assert not clipped(found)


def test_values_that_only_look_like_codes_stay(tmp_path):
    made = drafted(tmp_path, table("triglycerides", cycle("999", "99", "150", "1200")))
    assert "triglycerides" not in made.spec.sentinels  # all of them are possible
    cells = [str(v) for v in range(-1000, -9, 33)]  # -9 and -999 would not be far outside
    made = drafted(tmp_path, table("balance", [*cells, "-999"]))
    assert "balance" not in made.spec.sentinels


# --- text, separators, numbers ----------------------------------------------------------------------------------------

UMLAUT = table("Größe", cycle("170", "182", "165"))
READ = {
    "UTF-16, little end": (UMLAUT.encode("utf-16-le"), b"\xff\xfe", {"encoding": "utf-16"}),
    "latin-1": (UMLAUT.encode("latin-1"), b"", {"encoding": "latin-1"}),
    "UTF-8 with a mark": (UMLAUT.encode(), b"\xef\xbb\xbf", {"encoding": "utf-8"}),
    "semicolons": (table("Größe", cycle("170", "182"), ";").encode(), b"", {"separator": ";"}),
    "tabs in a .csv": (table("Größe", cycle("170", "182"), "\t").encode(), b"", {"separator": "\t"}),
    "pipes": (table("Größe", cycle("170", "182"), "|").encode(), b"", {"separator": "|"}),
    "lines of Windows": (table("Größe", cycle("170", "182"), end="\r\n").encode(), b"", {}),
    "a decimal comma": (table("Größe", cycle("170,5", "182,25"), ";").encode(), b"", {"decimal": ","}),
    "a quoted decimal comma": (table("Größe", cycle("170,5", "182,25")).encode(), b"", {"decimal": ","}),
    "scientific": (table("Größe", cycle("1.705e2", "18E1")).encode(), b"", {}),
    "spaces around": (table("  Größe ", cycle(" 170 ", "182  ")).encode(), b"", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_text_is_read_as_it_was_written(tmp_path, case):
    content, mark, about = READ[case]
    made = drafted(tmp_path, mark + content)
    assert {key: getattr(made.spec, key) for key in about} == about
    assert made.features["Größe"].label == "Height"
    _, found = runs(made, tmp_path)
    assert not found.loaded.problems
    assert not found.loaded.warnings
    high, low = 230, 100
    heights = (found.train.x[:, list(made.features).index("Größe") * 2] + 1) / 2 * (
        high - low
    ) + low
    assert heights.min() == pytest.approx(
        165 if "UTF" in case or case == "latin-1" else 170, abs=0.6
    )


def test_latin_1_that_begins_after_the_first_megabyte(tmp_path):
    rows = "".join(f"P{i},{i % 2},{40 + i % 30},north\n" for i in range(90_000))
    rows += "".join(f"Q{i},{i % 2},50,süd\n" for i in range(20))
    made = drafted(tmp_path, ("id,died,age,ward\n" + rows).encode("latin-1"))
    assert made.spec.encoding == "latin-1"


def test_thousands_of_both_worlds(tmp_path):
    made = drafted(tmp_path, table("platelets_/uL", cycle("150,000", "1,250,000", "90,000")))
    assert made.spec.thousands == ","
    _, found = runs(made, tmp_path)
    assert not found.loaded.problems
    assert not clipped(found)
    made = drafted(tmp_path, table("platelets_/uL", cycle("150.000", "1.250.000,5"), ";"))
    assert (made.spec.thousands, made.spec.decimal) == (".", ",")
    _, found = runs(made, tmp_path)
    assert not found.loaded.problems
    assert not clipped(found)


def test_units_in_the_name_or_betrayed_by_the_values(tmp_path):
    made = drafted(tmp_path, table("Cholesterin [mmol/l]", cycle("5.2", "6.1", "4.4")))
    assert made.spec.units == {"Cholesterin [mmol/l]": "mmol/L"}
    made = drafted(tmp_path, table("temperature", cycle("98.6", "99.5", "102.2")))
    assert made.spec.units == {"temperature": "°F"}
    assert "is it in °F here" in made.remarks["temperature"]
    _, found = runs(made, tmp_path)
    assert not clipped(found)


def test_what_fits_no_unit_is_said(tmp_path):
    made = drafted(tmp_path, table("glucose", cycle("5000", "6000", "7000")))
    assert "another unit, or not Glucose" in made.notes[0]


# --- columns that are no features -------------------------------------------------------------------------------------

LEFT_OUT = {
    "cells with units": ("bp", cycle("120 mmHg", "135 mmHg", "110 mmHg", "99 mmHg"), "write the unit"),
    "percent signs": ("sat", cycle("95 %", "97 %", "88 %", "91 %"), "write the unit"),
    "two numbers": ("RR", cycle("120/80", "135/85", "110/70"), "two numbers"),
    "ISO dates": ("seen", cycle("2024-03-01", "2024-04-05"), "a date"),
    "German dates": ("seen", cycle("01.03.2024", "05.04.2024"), "a date"),
    "dates by month": ("seen", cycle("02-JUN-52", "11-MAR-61"), "a date"),
    "dates in the future": ("seen", cycle("2199-03-01", "2024-04-05"), "a date"),
    "dates of 1900": ("seen", cycle("2024-03-01", "01-01-1900"), "a date"),
    "numbers of a spreadsheet's dates": ("Datum", cycle("45123", "45200"), "a date"),
    "an empty column": ("x", cycle(""), "no value"),
    "nothing but marks": ("x", cycle("NA", "?"), "no value"),
    "one value": ("x", cycle("7"), "no two values"),
    "one text": ("x", cycle("icu"), "no two values"),
    "free text": ("note", [f"Mrs. {i} felt {'very ' * 20}ill" for i in range(ROWS)], "no two values"),
    "names": ("Nachname", [f"Meier{i}" for i in range(ROWS)], "names, numbers or places"),
    "another identifier": ("encounter_id", [str(i) for i in range(ROWS)], "names, numbers or places"),
    "a hospital": ("hospital", cycle("north", "south"), "--sites-by"),
    "control characters in the name": ("a\x1b[31mred", cycle("1", "2"), "control characters"),
    "only rare values": ("ward", [f"w{i}" for i in range(ROWS)], "no two values"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_column_that_is_no_feature_is_left_out_with_the_reason(tmp_path, case):
    name, cells, why = LEFT_OUT[case]
    made = drafted(tmp_path, table(name, cells))
    assert name not in made.features
    assert why in made.left_out[name]
    text = made.text(tmp_path, "fedavg")
    assert "\x1b" not in text
    for cell in {cell for cell in cells if len(cell) > 3} - {"icu", "01-01-1900"}:
        assert f'"{cell}"' not in text


# --- categories and outcomes ------------------------------------------------------------------------------------------


def test_values_of_few_patients_are_not_written(tmp_path):
    cells = [*cycle("none", "mild", "severe", rows=57), "Kuru", "Fabry", "Pompe"]
    made = drafted(tmp_path, table("diagnosis", cells))
    assert made.features["diagnosis"].values == ("mild", "none", "severe")
    text = made.text(tmp_path, "fedavg")
    assert not re.search("Kuru|Fabry|Pompe", text)
    assert not re.search("Kuru|Fabry|Pompe", str(made.notes))
    # nor does the draft tell whether there are any: it reads the same without them
    plain = drafted(tmp_path, table("diagnosis", cycle("none", "mild", "severe")))
    assert plain.text(tmp_path, "fedavg") == text


@pytest.mark.parametrize(
    "alone", [["0", "1"], ["no", "Yes"], ["0", ""], ["0", "7"], ["", "1"], ["", "120"]]
)
def test_one_patient_alone_does_not_change_the_draft(tmp_path, alone):
    """Whether anybody has a rare condition, or a value at all, cannot be seen from the draft."""
    common, single = alone
    with_one = drafted(
        tmp_path, table("SYSBP" if single == "120" else "hiv", [*cycle(common, rows=59), single])
    )
    without = drafted(tmp_path, table("SYSBP" if single == "120" else "hiv", cycle(common)))
    assert with_one.text(tmp_path, "fedavg") == without.text(tmp_path, "fedavg")


def test_rows_of_one_patient_do_not_make_a_value_frequent(tmp_path):
    rows = "".join(f"P{i},{i % 2},50,common\nP{i},{i % 2},51,usual\n" for i in range(30))
    rows += "P0,0,52,singular\n" * 40
    made = drafted(tmp_path, "id,died,age,ward\n" + rows)
    assert made.features["ward"].values == ("common", "usual")


def test_letter_case_is_one_value_and_said(tmp_path):
    made = drafted(tmp_path, table("sex", cycle("Male", "Female", "Male", "male")))
    assert made.features["sex"] == Category(values=("Female", "Male"), protected=True)
    assert "another letter case" in made.notes[0]


def test_yes_and_no_in_any_case_and_in_other_languages(tmp_path):
    assert (
        drafted(tmp_path, table("smoker", cycle("Yes", "no", "Y", "N"))).features["smoker"]
        == Flag()
    )
    made = drafted(tmp_path, table("raucher", cycle("ja", "nein")))
    assert made.features["raucher"].values == ("ja", "nein")


@pytest.mark.parametrize(
    ("cells", "positive", "gap"),
    [
        (cycle("Alive", "Expired"), "Expired", False),
        (cycle("yes", "NO"), None, False),
        (cycle("NO", ">30", "<30"), "", True),
        (cycle("0", "1", "2", "3"), "", True),
        (cycle("tumour", "control"), "", True),
        (cycle("0.0", "1.0"), None, False),
    ],
)
def test_the_outcome_of_text_is_read_or_asked_for(tmp_path, cells, positive, gap):
    made = drafted(tmp_path, table("end", cells), outcome="end")
    assert made.positive == positive
    assert any("positive" in one for one in made.gaps) == gap
    if gap:
        with pytest.raises(StudyError, match="positive"):
            runs(made, tmp_path)
    else:
        assert not runs(made, tmp_path)[1].loaded.problems


def test_columns_that_may_come_after_the_outcome_are_marked(tmp_path):
    made = drafted(tmp_path, table("icu_death", cycle("0", "1")))
    assert "known only after" in made.remarks["icu_death"]
    with pytest.raises(StudyError, match="no cell of 'died' reads 'yes'"):
        drafted(tmp_path, table("x", cycle("0", "1")), positive="yes")


def test_the_positive_text_may_be_given(tmp_path):
    made = drafted(
        tmp_path,
        table("readmitted", cycle("NO", ">30", "<30")),
        outcome="readmitted",
        positive="<30",
    )
    _, found = runs(made, tmp_path)
    assert found.train.y.sum() == 20


def test_a_gap_is_an_error_that_names_it(tmp_path):
    made = drafted(tmp_path, table("blorb", [str(i / 7) for i in range(ROWS)]))
    path = made.write(tmp_path / "out", "fedavg")
    with pytest.raises(
        StudyError, match=r"schema\.features\.blorb.*low.*schema\.features\.blorb.*high"
    ):
        Study.from_toml(path)
    with pytest.raises(RunError, match="exists already"):
        made.write(tmp_path / "out", "fedavg")


def test_bounds_come_from_rows_only_if_asked_and_it_says_so(tmp_path):
    content = table("blorb", [str(i + 0.37) for i in range(ROWS)])
    text = drafted(tmp_path, content).text(tmp_path, "fedavg")
    assert "59" not in text
    assert "seen on rows" not in text
    asked = drafted(tmp_path, content, bounds_from_rows=True)
    assert (asked.features["blorb"].low, asked.features["blorb"].high) == (0, 60)
    assert asked.text(tmp_path, "fedavg").count("seen on rows") == 2  # at the line and on top


# --- files that cannot be drafted from --------------------------------------------------------------------------------

WIDE = ",".join(f"c{i}" for i in range(100_000)) + "\n" + "1," * 99_999 + "1\n"
REFUSED = {
    "an empty file": (b"", "rows.csv", "is empty"),
    "a header only": (b"id,died,age\n", "rows.csv", "no row holds anything"),
    "no header": (b"1,0,50\n2,1,60\n3,0,70\n", "rows.csv", "first line holds numbers"),
    "a title above": (b"Report of the ward\n" + table("x", cycle("1", "2")).encode(), "rows.csv", "title"),
    "one name twice": (table("age", cycle("1", "2")).encode(), "rows.csv", "there twice"),
    "thousands or decimals": (table("los", cycle("1,234", "5,678")).encode(), "rows.csv", "1234 or 1.234"),
    "a spreadsheet in disguise": (b"PK\x03\x04" + b"\0" * 99, "rows.csv", "spreadsheet"),
    "an old spreadsheet": (b"\xd0\xcf\x11\xe0" + b"\0" * 99, "rows.csv", "spreadsheet"),
    "a spreadsheet": (b"PK\x03\x04", "rows.xlsx", "ending in .csv"),
    "UTF-16, big end first": (b"\xfe\xff" + UMLAUT.encode("utf-16-be"), "rows.csv", "big end"),
    "one row per measurement": (b"id,parameter,value\n" + b"1,HR,80\n" * 20, "rows.csv", "one row per measurement"),
    "zero bytes": (b"id,died\n\0\0\0", "rows.csv", "zero bytes"),
    "a broken archive": (gzip.compress(table("x", cycle("1", "2")).encode())[:-60], "rows.csv.gz", "cannot be read"),
    "no archive": (b"id,died,age\n1,0,50\n", "rows.csv.gz", "cannot be read"),
    "no Parquet": (b"PAR1 but not really", "rows.parquet", "cannot be read as Parquet"),
    "no DuckDB": (b"x" * 4096, "rows.duckdb", "cannot be opened"),
    "only identifiers": (table("name", cycle("Ann"), head=("id", "died")).encode(), "rows.csv", "no column can be a feature"),
    "no such outcome": (table("x", cycle("1", "2"), head=("id",)).encode(), "rows.csv", "--outcome: there is no column 'died'"),
    "100,000 columns": (WIDE.encode(), "rows.csv", "choose at most 2,000"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_table_is_refused_in_plain_words(tmp_path, case):
    content, file, words = REFUSED[case]
    with pytest.raises(SutureError, match=re.escape(words)):
        drafted(tmp_path, content, file)


def test_pipes_folders_and_absent_files(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="a pipe"):
        draft({"path": str(tmp_path / "rows.csv")}, Asked())
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="a folder"):
        draft({"path": str(tmp_path / "folder.csv")}, Asked())
    with pytest.raises(DataError, match="no such file"):
        draft({"path": str(tmp_path / "absent.csv")}, Asked())


def test_a_line_that_cannot_be_read_is_noted_and_the_rest_is_drafted(tmp_path):
    made = drafted(tmp_path, table("SYSBP", cycle("120", "130")) + "P99,1\n")
    assert any("line" in note for note in made.notes)
    assert "SYSBP" in made.features


# --- hostile tables ---------------------------------------------------------------------------------------------------


def test_a_header_cannot_write_settings_into_the_draft(tmp_path):
    evil = 'x"\n[privacy]\nepsilon = 1e9\n#'
    head = "id,died,age," + '"' + evil.replace('"', '""') + '"\n'
    rows = "".join(f"P{i},{i % 2},{40 + i % 9},{i % 3}\n" for i in range(ROWS))
    made = drafted(tmp_path, head + rows)
    told = tomllib.loads(made.text(tmp_path, "fedavg"))
    assert told["privacy"]["epsilon"] == 8.0
    assert list(told["schema"]["features"]) == ["age"]


@pytest.mark.parametrize(
    "value",
    ['=cmd|" /C calc"!A0', '"] \n[privacy]', "a\x7fb", "\u2028x", "a\x1b]0;t\x07", "é" * 30, "x" * 79],
)  # fmt: skip
def test_a_value_cannot_break_out_of_the_draft(tmp_path, value):
    rows = [(f"P{i}", i % 2, 40 + i % 9, [value, "plain", "other"][i % 3]) for i in range(ROWS)]
    frame = pd.DataFrame(rows, columns=["id", "died", "age", "ward"])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    made = draft({"path": str(tmp_path / "rows.csv")}, Asked(outcome="died"))
    told = tomllib.loads(made.text(tmp_path, "fedavg"))
    expected = {"plain", "other"} | ({value} if value.isprintable() else set())
    assert set(told["schema"]["features"]["ward"]["values"]) == expected
    assert told["privacy"]["epsilon"] == 8.0


def test_a_huge_cell_does_no_harm(tmp_path):
    made = drafted(
        tmp_path, table("SYSBP", cycle("120", "130")) + f'P99,1,50,"{"x" * 3_000_000}"\n'
    )
    assert "SYSBP" in made.features
    assert len(made.text(tmp_path, "fedavg")) < 10_000


def test_odd_names_are_quoted(tmp_path):
    for name in ["a.b", "ж", "x y", "100%", "'q'", "=1+1", "Age"]:
        made = drafted(tmp_path, table(name, cycle("0", "1")), outcome="died")
        assert name in tomllib.loads(made.text(tmp_path, "fedavg"))["schema"]["features"]


# --- other sources ----------------------------------------------------------------------------------------------------


def test_parquet_with_all_its_types(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    day = datetime.date(2024, 1, 1)
    frame = pd.DataFrame({
        "id": range(ROWS), "died": np.arange(ROWS) % 2 == 0, "age": np.arange(ROWS) + 20.0,
        "SYSBP": cycle(120, None, -999), "admitted": [day] * ROWS, "smoker": cycle(True, False),
        "ward": cycle("a", "b", None), "tags": [["x"]] * ROWS,
    })  # fmt: skip
    duckdb.from_df(frame).write_parquet(str(tmp_path / "rows.parquet"))
    made = draft({"path": str(tmp_path / "rows.parquet")}, Asked(outcome="died"))
    assert list(made.features) == ["age", "SYSBP", "smoker", "ward"]
    assert made.spec.sentinels == {"SYSBP": ("-999",)}
    assert set(made.left_out) == {"admitted", "tags"}
    assert not clipped(runs(made, tmp_path)[1])


def test_duckdb_with_two_tables_asks_which(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = str(tmp_path / "rows.duckdb")
    with duckdb.connect(path) as connection:
        connection.sql(
            "CREATE TABLE a AS SELECT range AS id, range % 2 AS died, 30 + range AS age FROM range(60)"
        )
        connection.sql("CREATE TABLE b AS SELECT 1 AS x")
    with pytest.raises(DataError, match="which table"):
        draft({"path": path}, Asked(outcome="died"))
    made = draft({"path": path, "table": "a"}, Asked(outcome="died"))
    assert (made.patient, list(made.features)) == ("id", ["age"])


# --- simulations ------------------------------------------------------------------------------------------------------


def test_patients_are_dealt_out_whole_and_every_one_to_one_hospital(tmp_path):
    rows = "".join(f"P{i % 40},{i % 2},{40 + i % 30}\n" for i in range(200))
    made = drafted(tmp_path, "id,died,age\n" + rows, deal=4)
    study = Study.from_text(made.text(tmp_path, "fedavg"))
    assert study.simulation
    parts = [
        load(site.data.under(tmp_path), study.table, "died", site=site.name, holdout=0.0, split_key="k")
        for site in study.sites
    ]  # fmt: skip
    assert sum(part.train.patients for part in parts) == 40
    assert sum(part.train.rows for part in parts) == 200
    assert min(part.train.patients for part in parts) > 0


def test_hospitals_of_a_column(tmp_path):
    made = drafted(
        tmp_path, table("hospital", cycle("north/a", "south", "south")), sites_by="hospital"
    )
    study = Study.from_text(made.text(tmp_path, "fedavg"))
    assert [site.name for site in study.sites] == ["north-a", "south"]
    sizes = [
        load(site.data.under(tmp_path), study.table, "died", site=site.name, holdout=0.0, split_key="k").train.patients
        for site in study.sites
    ]  # fmt: skip
    assert sizes == [20, 40]
    assert "hospital" not in study.table.features


@pytest.mark.parametrize(
    "asked", [{"deal": 1}, {"deal": -3}, {"deal": 2, "sites_by": "x"}, {"sites_by": "y"}]
)
def test_simulations_that_make_no_sense_are_refused(tmp_path, asked):
    with pytest.raises(StudyError, match=r"--deal|--sites-by"):
        drafted(tmp_path, table("x", cycle("a", "b")), **asked)


def test_sixty_bad_tables_are_tried():
    tried = [*SENTINELS, *MARKS, *READ, *LEFT_OUT, *REFUSED]
    assert len(set(tried)) >= 60
