"""`suture check`: every fault is named with its level, column and likely cause; clean tables are
left in peace."""

from __future__ import annotations

import csv
from datetime import UTC, date, datetime

import numpy as np
import pytest

from suture.engine.check import check_site
from suture.site.check import _WORDS, say
from suture.site.gate import LEDGER, place_of
from suture.study import Study

TODAY = datetime.now(UTC).date()
SCHEMA = {
    "patient": "id",
    "groups": ["ward"],
    "features": {
        "age": {"kind": "number", "low": 18, "high": 100, "unit": "years"},
        "temp": {"kind": "number", "low": 30, "high": 43, "unit": "°C"},
        "glucose": {"kind": "number", "low": 0, "high": 1000, "unit": "mg/dL"},
        "creatinine": {"kind": "number", "low": 0, "high": 20, "unit": "mg/dL"},
        "score": {"kind": "number", "low": -50, "high": 50},
        "sbp": {"kind": "number", "low": 0, "high": 300, "unit": "mmHg"},
        "sex": {"kind": "category", "values": ["F", "M"]},
        "smoker": {"kind": "flag"},
    },
}


def clean(seed=0, rows=400):
    """A table as a careful hospital exports it: some values missing, a few beyond the bounds."""
    rng = np.random.default_rng([seed, rows])
    age = np.round(rng.normal(63, 14, rows)).clip(18, 99)
    risk = 1 / (1 + np.exp(-(-1.2 + 0.04 * (age - 60))))
    table = {
        "id": [f"P{i:05d}" for i in range(rows)],
        "age": age,
        "temp": np.round(rng.normal(36.9, 0.5, rows), 1),
        "glucose": np.round(rng.lognormal(4.7, 0.25, rows)),
        "creatinine": np.round(rng.lognormal(0, 0.4, rows), 2),
        "score": np.round(rng.normal(0, 10, rows), 2),
        "sbp": np.round(rng.normal(130, 18, rows)),
        "sex": rng.choice(["F", "M"], rows),
        "smoker": rng.integers(0, 2, rows),
        "ward": rng.choice(["A", "B"], rows),
        "died": (rng.random(rows) < risk).astype(int),
    }
    table = {name: [str(value) for value in values] for name, values in table.items()}
    for name in ("temp", "glucose"):
        for i in rng.choice(rows, rows // 10, replace=False):
            table[name][i] = ""
    return table


def study_of(rows=400, **fields):
    schema = fields.pop("schema", {})
    features = {**SCHEMA["features"], **schema.pop("features", {})}
    return Study(
        **{
            "name": "ward",
            "outcome": "died",
            "sites": [{"name": "north", "data": "north.csv", "patients": round(0.8 * rows)}],
            "schema": {**SCHEMA, **schema, "features": features},
            "model": {"hidden": []},
            "method": {"name": "fedavg", "rounds": 5},
            "privacy": {"unit": "patient", "epsilon": 8.0},
            **fields,
        }
    )


def checked(folder, table, study=None):
    with (folder / "north.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    study = study or study_of(len(table["id"]))
    return check_site(study, place_of(study.sites[0], folder), folder)


def some(table, column, value, share=0.1):
    """Every so manieth cell replaced; ``value`` may be a function of the old text."""
    step = round(1 / share)
    new = [
        (value(old) if callable(value) else value) if i % step == 0 else old
        for i, old in enumerate(table[column])
    ]
    return {**table, column: new}


def number(change):
    return lambda old: old and f"{change(float(old)):.6g}"


def ill(table, value, well):
    return [value if y == "1" else well(i) for i, y in enumerate(table["died"])]


def twice(table, chosen, **changes):
    """Some rows again at the end, with other values in some columns."""
    again = {name: [values[i] for i in chosen] for name, values in table.items()}
    again |= {name: [change(text) for text in again[name]] for name, change in changes.items()}
    return {name: values + again[name] for name, values in table.items()}


def bounds(name, low, high, **more):
    return {"schema": {"features": {name: {"kind": "number", "low": low, "high": high, **more}}}}


IN_TEN_YEARS = str(date(TODAY.year + 10, 3, 1))
FAULTS = {
    # name: what is done to a clean table, changes to the study, level, what it is about, column, cause
    "-999 for missing": (
        lambda t: some(t, "temp", "-999"),
        {},
        "stop",
        "clipped-sentinel",
        "temp",
        "sentinel",
    ),
    "one -999 in 400 rows": (
        lambda t: some(t, "temp", "-999", 1 / 400),
        {},
        "stop",
        "clipped-sentinel",
        "temp",
        "sentinel",
    ),
    "9999 for missing": (
        lambda t: some(t, "glucose", "9999"),
        {},
        "stop",
        "clipped-sentinel",
        "glucose",
        "sentinel",
    ),
    "-1 for missing": (
        lambda t: some(t, "age", "-1", 0.02),
        {},
        "stop",
        "clipped-sentinel",
        "age",
        "sentinel",
    ),
    "999 within wide bounds": (
        lambda t: some(t, "glucose", "999", 0.05),
        {},
        "look",
        "sentinel",
        "glucose",
        "sentinel",
    ),
    "99.9 for missing": (
        lambda t: some(t, "temp", "99.9"),
        {},
        "stop",
        "clipped-sentinel",
        "temp",
        "sentinel",
    ),
    "0 for missing": (
        lambda t: some(t, "sbp", "0", 0.05),
        {},
        "look",
        "sentinel-zero",
        "sbp",
        "sentinel",
    ),
    "fahrenheit": (
        lambda t: some(t, "temp", number(lambda x: 1.8 * x + 32), 1),
        {},
        "stop",
        "clipped-unit",
        "temp",
        "unit: °F",
    ),
    "fahrenheit in a ward": (
        lambda t: some(t, "temp", number(lambda x: 1.8 * x + 32), 0.05),
        {},
        "look",
        "clipped-unit",
        "temp",
        "unit: °F",
    ),
    "µmol/L for mg/dL": (
        lambda t: some(t, "creatinine", number(lambda x: 88.42 * x), 1),
        {},
        "stop",
        "clipped-unit",
        "creatinine",
        "unit: µmol/L",
    ),
    "mmol/L within the bounds": (
        lambda t: some(t, "glucose", number(lambda x: x / 18.0156), 1),
        {},
        "look",
        "unit",
        "glucose",
        "unit: mmol/L",
    ),
    "mmol/L below the bounds": (
        lambda t: some(t, "glucose", number(lambda x: x / 18.0156), 1),
        bounds("glucose", 20, 1000, unit="mg/dL"),
        "stop",
        "clipped-unit",
        "glucose",
        "unit: mmol/L",
    ),
    "a factor of 100": (
        lambda t: some(t, "score", number(lambda x: 2000 + 100 * abs(x)), 0.5),
        {},
        "stop",
        "clipped-unit",
        "score",
        "unit: 100 times too large",
    ),
    "geriatric clinic, age to 60": (
        lambda t: some(t, "age", number(lambda x: 70 + x % 25), 1),
        bounds("age", 18, 60, unit="years"),
        "stop",
        "clipped-bound",
        "age",
        "bound",
    ),
    "a bound that cuts 3 %": (
        lambda t: some(t, "score", "55", 0.03),
        {},
        "look",
        "clipped-bound",
        "score",
        "bound",
    ),
    "dates as numbers": (
        lambda t: some(t, "score", "20240517", 1 / 3),
        {},
        "stop",
        "clipped-date",
        "score",
        "date",
    ),
    "dates as text": (
        lambda t: some(t, "age", "17.05.1961"),
        {},
        "stop",
        "not-a-number",
        "age",
        "date",
    ),
    "01-01-1900": (
        lambda t: some(t, "age", "01-01-1900"),
        {},
        "stop",
        "not-a-number",
        "age",
        "date",
    ),
    "decimal commas": (
        lambda t: some(t, "temp", lambda old: old.replace(".", ","), 1),
        {},
        "stop",
        "not-a-number",
        "temp",
        "decimal comma",
    ),
    "thousands": (
        lambda t: some(t, "glucose", "1,234"),
        {},
        "stop",
        "not-a-number",
        "glucose",
        "thousands separator",
    ),
    "detection limits": (
        lambda t: some(t, "creatinine", "<0.2"),
        {},
        "stop",
        "not-a-number",
        "creatinine",
        "detection limit",
    ),
    "units in the cells": (
        lambda t: some(t, "glucose", lambda old: f"{old} mg/dL"),
        {},
        "stop",
        "not-a-number",
        "glucose",
        "unit in the cell",
    ),
    "NA in a number": (
        lambda t: some(t, "glucose", "NA"),
        {},
        "stop",
        "not-a-number",
        "glucose",
        "missing code",
    ),
    "letter case": (
        lambda t: some(t, "sex", str.lower, 1),
        {},
        "stop",
        "undeclared",
        "sex",
        "letter case",
    ),
    "words for letters": (
        lambda t: some(t, "sex", lambda old: {"F": "female", "M": "male"}[old], 1),
        {},
        "stop",
        "undeclared",
        "sex",
        "spelling",
    ),
    "undeclared category": (
        lambda t: some(t, "sex", "X"),
        {},
        "stop",
        "undeclared",
        "sex",
        "undeclared",
    ),
    "? in a category": (
        lambda t: some(t, "sex", "?"),
        {},
        "stop",
        "undeclared",
        "sex",
        "missing code",
    ),
    "flag coded 1 and 2": (
        lambda t: some(t, "smoker", lambda old: str(int(old) + 1), 1),
        {},
        "stop",
        "undeclared",
        "smoker",
        "coded 1 and 2",
    ),
    "empty column": (
        lambda t: some(t, "glucose", "", 1),
        {},
        "stop",
        "column-empty",
        "glucose",
        "not recorded here, or not for the rows that schema.include keeps",
    ),
    "almost empty column": (
        lambda t: {**t, "score": [v if i % 20 == 0 else "" for i, v in enumerate(t["score"])]},
        {},
        "look",
        "missing",
        "score",
        "missing",
    ),
    "missing where refused": (
        lambda t: t,
        {"schema": {"missing": "refuse"}},
        "stop",
        "missing-refused",
        "temp",
        "missing",
    ),
    "constant number": (
        lambda t: some(t, "score", "7", 1),
        {},
        "look",
        "constant",
        "score",
        "default value",
    ),
    "constant category": (
        lambda t: some(t, "sex", "F", 1),
        {},
        "look",
        "constant",
        "sex",
        "default value",
    ),
    "constant outcome": (
        lambda t: some(t, "died", "0", 1),
        {},
        "stop",
        "outcome-constant",
        "died",
        "constant",
    ),
    "rare outcome": (
        lambda t: {**t, "died": ["1" if i < 5 else "0" for i in range(400)]},
        {},
        "look",
        "outcome-rare",
        "died",
        "rare",
    ),
    "outcome missing": (
        lambda t: some(t, "died", ""),
        {},
        "stop",
        "outcome-missing",
        "died",
        "missing",
    ),
    "outcome coded 1 and 2": (
        lambda t: some(t, "died", lambda old: str(int(old) + 1), 1),
        {},
        "stop",
        "outcome-undeclared",
        "died",
        "coded 1 and 2",
    ),
    "outcome in words, other case": (
        lambda t: {**t, "died": ill(t, "DEAD", lambda i: "alive")},
        {"positive": "dead"},
        "stop",
        "outcome-constant",
        "died",
        "letter case",
    ),
    "leaking number": (
        lambda t: {**t, "score": ill(t, "20", lambda i: str(i % 19))},
        {},
        "stop",
        "leak",
        "score",
        "recorded after the outcome",
    ),
    "leaking flag": (
        lambda t: {**t, "smoker": t["died"]},
        {},
        "stop",
        "leak",
        "smoker",
        "recorded after the outcome",
    ),
    "nearly leaking": (
        lambda t: {**t, "score": ill(t, "20", lambda i: "30" if i % 25 == 0 else str(i % 15))},
        {},
        "look",
        "leak",
        "score",
        "recorded after the outcome",
    ),
    "recorded for the dead only": (
        lambda t: {
            **t,
            "score": [v if y == "1" else "" for v, y in zip(t["score"], t["died"], strict=True)],
        },
        {},
        "stop",
        "leak-recorded",
        "score",
        "recorded by outcome",
    ),
    "no patient identifier": (lambda t: some(t, "id", ""), {}, "stop", "nobody", "id", "missing"),
    "rows exported twice": (
        lambda t: twice(t, range(20)),
        {},
        "look",
        "same-row",
        "",
        "rows exported twice",
    ),
    "one patient, two identifiers": (
        lambda t: twice(t, range(20), id=lambda text: f"Q{text}"),
        {},
        "look",
        "same-values",
        "",
        "one patient under two identifiers",
    ),
    "identifiers in two cases": (
        lambda t: twice(t, range(20), id=str.lower, age=lambda text: str(float(text) + 1)),
        {},
        "look",
        "alike",
        "id",
        "one patient under two identifiers",
    ),
    "identifiers that lost zeros": (
        lambda t: {**t, "id": [f"{i:05d}" if i < 200 else str(i - 199) for i in range(400)]},
        {},
        "look",
        "alike",
        "id",
        "one patient under two identifiers",
    ),
    "more rows than are used": (
        lambda t: {**t, "id": [f"P{i // 4}" for i in range(400)]},
        {"schema": {"rows": 1}},
        "look",
        "rows-unused",
        "id",
        "several rows",
    ),
    "dates in the future": (
        lambda t: some(t, "ward", IN_TEN_YEARS),
        {},
        "look",
        "date-future",
        "ward",
        "date",
    ),
    "dates that stand for none": (
        lambda t: some(t, "ward", "1900-01-01"),
        {},
        "stop",
        "date-none",
        "ward",
        "sentinel",
    ),
    "years in the future": (
        lambda t: {**t, "birth_year": ["2090" if i % 9 == 0 else "1950" for i in range(400)]},
        bounds("birth_year", 1900, 2100),
        "look",
        "year-future",
        "birth_year",
        "date",
    ),
    "a group of few": (
        lambda t: some(t, "ward", "C", 1 / 100),
        {},
        "look",
        "group-small",
        "ward",
        "small group",
    ),
    "identifiers as groups": (
        lambda t: {**t, "ward": t["id"]},
        {},
        "look",
        "groups-many",
        "ward",
        "too many groups",
    ),
    "declared half as many": (
        lambda t: t,
        {"sites": [{"name": "north", "data": "north.csv", "patients": 130}]},
        "stop",
        "size",
        "",
        "declared size",
    ),
    "declared a third more": (
        lambda t: t,
        {"sites": [{"name": "north", "data": "north.csv", "patients": 450}]},
        "look",
        "size",
        "",
        "declared size",
    ),
    "nobody in the cohort": (
        lambda t: t,
        {"schema": {"include": [{"column": "age", "min": 130}]}},
        "stop",
        "empty",
        "",
        "",
    ),
    "delta too large": (
        lambda t: t,
        {"privacy": {"unit": "patient", "epsilon": 8.0, "delta": 0.01}},
        "look",
        "delta",
        "",
        "delta",
    ),
    "more than the lifetime budget": (
        lambda t: t,
        {"privacy": {"unit": "patient", "epsilon": 12.0}},
        "stop",
        "lifetime",
        "",
        "budget",
    ),
    "noise alone": (
        lambda t: t,
        {"model": {"hidden": [512, 512]}, "privacy": {"unit": "patient", "epsilon": 0.05}},
        "look",
        "method",
        "",
        "noise",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_level_column_and_cause(tmp_path, name):
    spoil, fields, level, about, column, cause = FAULTS[name]
    found = checked(tmp_path, spoil(clean()), study_of(**fields))["findings"]
    seen = [(one["level"], one["about"], one["column"], one["cause"]) for one in found]
    assert (level, about, column, cause) in seen, seen
    rank = [("stop", "look", "fine").index(one["level"]) for one in found]
    assert rank == sorted(rank)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [150, 400, 2000])
def test_a_clean_table_is_left_in_peace(tmp_path, seed, rows):
    """At most one of these 18 tables may be doubted by chance; none is, with these seeds."""
    found = checked(tmp_path, clean(seed, rows))
    assert [one for one in found["findings"] if one["level"] != "fine"] == []
    assert (found["stop"], found["look"]) == (0, 0)


def test_the_figures_are_exact(tmp_path):
    table = clean(rows=300)
    table["id"] = [f"P{i // 2}" for i in range(300)]
    found = checked(tmp_path, table, study_of(150))["figures"]
    assert (found["rows"], found["patients"]) == (300, 150)
    assert found["train"] + found["test"] == 150
    assert found["prevalence"] == sum(map(int, table["died"])) / 300


def test_what_is_clipped_is_counted_on_each_side(tmp_path):
    table = some(clean(), "score", "-60", 0.05)
    table["score"][1:201:10] = ["70"] * 20
    found = checked(tmp_path, table)["findings"]
    text = next(one["text"] for one in found if one["about"] == "clipped-bound")
    assert text == "20 below -50 and 20 above 50, of 400 rows (10%), would be clipped"


def test_no_value_of_a_patient_is_shown(tmp_path):
    """Undeclared texts, identifiers and cells that are no number are counted, not quoted."""
    table = some(clean(), "sex", "Zebediah")
    table = some(table, "glucose", "Quincunx", 0.2)
    table = some(table, "ward", "Yellowknife", 1 / 200)
    told = str(checked(tmp_path, table)["findings"])
    assert not any(word in told for word in ("Zebediah", "Quincunx", "Yellowknife", "P000"))


def test_who_withdrew_is_not_looked_at(tmp_path):
    table = some(clean(), "temp", "-999", 0.1)
    (tmp_path / "consent.csv").write_text(
        "id\n" + "\n".join(id_ for id_, temp in zip(table["id"], table["temp"], strict=True) if temp != "-999")
    )  # fmt: skip
    consent = {"path": "consent.csv", "patient": "id"}
    site = {"name": "north", "data": "north.csv", "patients": 290, "consent": consent}
    found = checked(tmp_path, table, study_of(sites=[site]))
    assert found["figures"]["patients"] == 360
    assert found["stop"] == 0


def test_nothing_is_written_and_no_ledger_made(tmp_path):
    checked(tmp_path, clean())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["north.csv"]
    assert not (tmp_path / ".suture" / "north" / LEDGER).exists()


def test_few_small_hospitals_may_agree_on_no_concept(tmp_path):
    """Measured by the rehearsal: three hospitals of 100, one vote, epsilon 1."""
    sites = [{"name": "north", "data": "north.csv", "patients": 80}]
    sites += [{"name": name, "patients": 80} for name in ("east", "south")]
    method = {"name": "veil", "rounds": 4}
    asked = study_of(sites=sites, method=method, privacy={"unit": "patient", "epsilon": 1.0})
    found = [one for one in checked(tmp_path, clean(rows=100), asked)["findings"] if one["about"] == "method"]  # fmt: skip
    assert any("agree on no concept" in one["text"] for one in found)
    many = [{"name": "north", "data": "north.csv", "patients": 2000}]
    many += [{"name": f"h{i}", "patients": 2000} for i in range(29)]
    asked = study_of(sites=many, method={"name": "veil", "rounds": 20})
    found = [one for one in checked(tmp_path, clean(rows=2500), asked)["findings"] if one["about"] == "method"]  # fmt: skip
    assert found == []


def test_every_word_of_the_list_is_used():
    """A finding that nothing can find, and words that cannot be filled, are mistakes."""
    tested = {about for _, _, _, about, _, _ in FAULTS.values()}
    others = {
        "unreadable",
        "unseen",
        "rare",
        "several-rows",
        "groups",
        "charter",
        "cost",
        "evaluation",
        *("record-concept", "record-unit", "record-silent", "record-fault"),
    }
    assert set(_WORDS) - {"written"} == tested | others


def test_a_charter_that_forbids_the_study_says_stop(tmp_path):
    home = tmp_path / ".suture" / "north"
    home.mkdir(parents=True)
    (home / "trust.pub").write_text("not a key")
    found = checked(tmp_path, clean())["findings"]
    assert [one["about"] for one in found if one["level"] == "stop"] == ["charter"]
    assert not (home / LEDGER).exists()


def test_words_hold_the_figures():
    assert say("rows-unused", "id", n=300, of=400, each=1).text.startswith("300 of 400 rows (75%)")
