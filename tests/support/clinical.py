"""A small made-up hospital, written as OMOP tables and as FHIR resources, and the table that a
cohort file makes of it, by hand in pandas."""

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
from typer.testing import CliRunner

from suture.cli.main import app
from suture.engine import conduct
from suture.study import Study

FEATURES = """
[concepts]
diabetes = { SNOMED = ["44054006"] }

[cohort]
visit = ["inpatient", "emergency"]
which = "every"
age = [18, 89]
observed = { before = 30 }

[features]
age = { person = "age" }
sex = { person = "sex" }
glucose = { measurement = { LOINC = ["2339-0"] }, window = ["-365d", "0d"] }
glucose_mean = { measurement = { LOINC = ["2339-0"] }, window = ["-365d", "0d"], take = "mean" }
glucose_min = { measurement = { LOINC = ["2339-0"] }, window = ["ever", "0d"], take = "min" }
glucose_mmol = { measurement = { LOINC = ["2339-0"] }, unit = "mmol/L", window = ["ever", "-1d"], take = "first" }
high_glucose = { measurement = { LOINC = ["2339-0"] }, above = 180, window = ["ever", "0d"], take = "count" }
systolic = { measurement = { LOINC = ["8480-6"] }, window = ["-24h", "6h"], take = "max" }
smoker = { measurement = { LOINC = ["72166-2"] }, value = { SNOMED = ["449868002"] }, take = "any" }
diabetes = { condition = "diabetes" }
statin = { drug = { RxNorm = ["316672"] }, window = ["-180d", "0d"], take = "count" }
scan = { procedure = { SNOMED = ["77477000"] }, window = ["start", "end"], take = "any" }
days_since = { condition = "diabetes", take = "days" }

[outcome]
readmitted = { visit = ["inpatient", "emergency"], window = ["end+1d", "end+30d"] }
died = { death = true, window = ["0d", "365d"] }
"""
COLUMNS = [
    "person_id", "age", "sex", "glucose", "glucose_mean", "glucose_min", "glucose_mmol",
    "high_glucose", "systolic", "smoker", "diabetes", "statin", "scan", "days_since", "readmitted",
    "died",
]  # fmt: skip
MASS = 18.0156  # mg/dL of glucose in one mmol/L
CONCEPTS = {
    ("LOINC", "2339-0"): 3000483, ("LOINC", "8480-6"): 3004249, ("LOINC", "8462-4"): 3012888,
    ("LOINC", "72166-2"): 43054909, ("SNOMED", "449868002"): 4298794,
    ("SNOMED", "266919005"): 4144272, ("SNOMED", "44054006"): 201826,
    ("SNOMED", "38341003"): 316866, ("RxNorm", "316672"): 1539464,
    ("RxNorm", "313782"): 1127433, ("SNOMED", "77477000"): 4300757,
    ("SNOMED", "76601001"): 4295880, ("UCUM", "mg/dL"): 8840, ("UCUM", "mmol/L"): 8753,
    ("UCUM", "mm[Hg]"): 8876,
}  # fmt: skip
SYSTEM = {
    "LOINC": "http://loinc.org",
    "SNOMED": "http://snomed.info/sct",
    "RxNorm": "http://www.nlm.nih.gov/research/umls/rxnorm",
}
VISIT = {"inpatient": (9201, "IMP"), "emergency": (9203, "EMER"), "outpatient": (9202, "AMB")}


def made(people=100, seed=7):
    """Persons, visits and events as frames; times to the minute."""
    rng = np.random.default_rng(seed)
    day0 = pd.Timestamp("2015-01-01")
    persons, visits, events = [], [], []
    for person in range(1, people + 1):
        born = pd.Timestamp("1920-01-01") + pd.Timedelta(days=int(rng.integers(0, 34000)))
        died = day0 + pd.Timedelta(days=int(rng.integers(300, 900)))
        died = died if rng.random() < 0.3 else pd.NaT
        persons.append((person, born, ("male", "female", "other")[int(rng.choice(3, p=(0.5, 0.45, 0.05)))], died))  # fmt: skip
        for _ in range(int(rng.integers(1, 7))):
            start = day0 + pd.Timedelta(minutes=int(rng.integers(0, 500 * 1440)))
            stop = start + pd.Timedelta(minutes=int(rng.integers(60, 8 * 1440)))
            visits.append((person, str(rng.choice([*VISIT])), start, stop))
            near = [start + pd.Timedelta(minutes=int(m)) for m in rng.integers(-4000, 4000, 12)]
            mole = rng.random(3) < 0.4
            for when, other in zip(near[:3], mole, strict=True):
                unit = "mmol/L" if other else "mg/dL"
                value = round(float(rng.uniform(3, 14) * (1 if other else 18)), 2)
                events.append(("measurement", person, when, "LOINC", "2339-0", value, unit, None))
            top, low = (float(x) for x in rng.integers(60, 180, 2))
            events.append(("measurement", person, near[3], "LOINC", "8480-6", top, "mm[Hg]", None))
            events.append(("measurement", person, near[3], "LOINC", "8462-4", low, "mm[Hg]", None))
            smokes = ("449868002", "266919005")[int(rng.integers(2))]
            events.append(("measurement", person, near[4], "LOINC", "72166-2", np.nan, "", smokes))
            for i, (domain, vocabulary, codes) in enumerate((
                ("condition", "SNOMED", ("44054006", "38341003")),
                ("drug", "RxNorm", ("316672", "313782")),
                ("procedure", "SNOMED", ("77477000", "76601001")),
            )):  # fmt: skip
                if rng.random() < 0.6:
                    code = codes[int(rng.integers(2))]
                    events.append((domain, person, near[5 + i], vocabulary, code, np.nan, "", None))
    names = ["domain", "person", "start", "vocabulary", "code", "value", "unit", "result"]
    return {
        "person": pd.DataFrame(persons, columns=["person", "born", "sex", "died"]),
        "visit": pd.DataFrame(visits, columns=["person", "kind", "start", "stop"]),
        "event": pd.DataFrame(events, columns=names),
    }


# --- by hand ----------------------------------------------------------------------------------------------------------


def by_hand(hospital):
    """The table of `FEATURES`, in pandas."""
    person, visit, event = hospital["person"], hospital["visit"], hospital["event"]
    acute = visit[visit.kind.isin(["inpatient", "emergency"])].drop(columns="kind")
    index = acute.drop_duplicates().merge(person, on="person").reset_index(drop=True)
    day, born = index.start.dt.normalize(), index.born
    early = (day.dt.month < born.dt.month) | (
        (day.dt.month == born.dt.month) & (day.dt.day < born.dt.day)
    )
    index["age"] = day.dt.year - born.dt.year - early
    seen = visit.groupby("person").agg(first=("start", "min"), last=("stop", "max"))
    index = index.join(seen, on="person")
    inside = index["first"].dt.normalize() <= day - pd.Timedelta(days=30)
    died_first = index.died.dt.normalize() < day
    index = index[index.age.between(18, 89) & inside & ~died_first].reset_index(drop=True)
    index["row"] = index.index
    index["day"] = index.start.dt.normalize()

    def near(events, low=None, high=None):
        """Events with the index they are near to, by days from the index's day."""
        both = index[["row", "person", "day", "start", "stop"]].rename(
            columns={"start": "at", "stop": "until"}
        )
        both = both.merge(events, on="person")
        days = (both.start.dt.normalize() - both.day).dt.days
        low = -np.inf if low is None else low
        high = np.inf if high is None else high
        return both[(days >= low) & (days <= high)]

    def of(domain, code):
        return event[(event.domain == domain) & (event.code == code)]

    def put(name, series, fill=np.nan):
        index[name] = index.row.map(series).fillna(fill) if fill == fill else index.row.map(series)

    glucose = of("measurement", "2339-0").copy()
    mmol = glucose.unit == "mmol/L"
    glucose["mg"] = np.floor(np.where(mmol, glucose.value * MASS, glucose.value) * 1e6 + 0.5)
    by = float(f"{1 / MASS:.12g}")
    glucose["mmol"] = np.floor(np.where(mmol, glucose.value, glucose.value * by) * 1e6 + 0.5)
    year = near(glucose, -365, 0).sort_values(["start", "mg"])
    put("glucose", year.groupby("row").mg.last() / 1e6)
    exact = year.assign(mg=year.mg.astype("int64")).groupby("row").mg
    put("glucose_mean", exact.sum() / (exact.count() * 1_000_000))
    put("glucose_min", near(glucose, None, 0).groupby("row").mg.min() / 1e6)
    before = near(glucose, None, -1).sort_values(["start", "mmol"])
    put("glucose_mmol", before.groupby("row").mmol.first() / 1e6)
    high = near(glucose, None, 0)
    put("high_glucose", high[high.mg > 180e6].groupby("row").size(), 0)
    bp = near(of("measurement", "8480-6"))
    hours = (bp.start - bp["at"]) / pd.Timedelta(hours=1)
    put("systolic", bp[(hours >= -24) & (hours <= 6)].groupby("row").value.max())
    smoke = near(of("measurement", "72166-2"), None, 0)
    put("smoker", (smoke[smoke.result == "449868002"].groupby("row").size() > 0).astype(int), 0)
    diabetes = near(of("condition", "44054006"), None, 0)
    put("diabetes", (diabetes.groupby("row").size() > 0).astype(int), 0)
    since = (diabetes.start.dt.normalize() - diabetes.day).dt.days
    put("days_since", since.groupby(diabetes.row).min())
    put("statin", near(of("drug", "316672"), -180, 0).groupby("row").size(), 0)
    scan = near(of("procedure", "77477000"), 0)
    scan = scan[scan.start.dt.normalize() <= scan.until.dt.normalize()]
    put("scan", (scan.groupby("row").size() > 0).astype(int), 0)
    again = near(acute.drop_duplicates())
    later = (again.start.dt.normalize() - again.until.dt.normalize()).dt.days
    again = again[(later >= 1) & (later <= 30)]
    put("readmitted", (again.groupby("row").size() > 0).astype(int), 0)
    index["died"] = ((index.died.dt.normalize() - index.day).dt.days <= 365).astype(int)
    return index.rename(columns={"person": "person_id"})[COLUMNS]


def tidy(columns):
    """A table as a frame in one order of its rows, numbers as doubles."""
    frame = pd.DataFrame({name: list(values) for name, values in columns.items()})
    for name in frame.columns.difference(["person_id", "sex"]):
        frame[name] = frame[name].astype(float)
    frame["person_id"] = frame.person_id.astype(str).str.removeprefix("p")
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


# --- OMOP -------------------------------------------------------------------------------------------------------------


def omop_tables(hospital):
    """The tables of the common data model, as frames."""
    person, visit, event = hospital["person"], hospital["visit"], hospital["event"]
    seen = visit.groupby("person").agg(start=("start", "min"), stop=("stop", "max")).reset_index()
    dead = person[person.died.notna()]
    tables = {
        "person": pd.DataFrame({
            "person_id": person.person,
            "gender_concept_id": person.sex.map({"male": 8507, "female": 8532, "other": 8521}),
            "year_of_birth": person.born.dt.year, "month_of_birth": person.born.dt.month,
            "day_of_birth": person.born.dt.day,
        }),
        "visit_occurrence": pd.DataFrame({
            "visit_occurrence_id": range(len(visit)), "person_id": visit.person,
            "visit_concept_id": visit.kind.map(lambda kind: VISIT[kind][0]),
            "visit_start_date": visit.start.dt.date, "visit_start_datetime": visit.start,
            "visit_end_date": visit.stop.dt.date, "visit_end_datetime": visit.stop,
        }),
        "observation_period": pd.DataFrame({
            "person_id": seen.person, "observation_period_start_date": seen.start.dt.date,
            "observation_period_end_date": seen.stop.dt.date,
        }),
        "death": pd.DataFrame({"person_id": dead.person, "death_date": dead.died.dt.date}),
        "concept": pd.DataFrame(
            [(i, v, c, "S") for (v, c), i in CONCEPTS.items()],
            columns=["concept_id", "vocabulary_id", "concept_code", "standard_concept"],
        ),
    }  # fmt: skip
    names = {
        "measurement": ("measurement", "measurement_"),
        "condition": ("condition_occurrence", "condition_start_"),
        "drug": ("drug_exposure", "drug_exposure_start_"),
        "procedure": ("procedure_occurrence", "procedure_"),
    }
    for domain, (table, when) in names.items():
        some = event[event.domain == domain]
        keys = zip(some.vocabulary, some.code, strict=True)
        tables[table] = pd.DataFrame({
            "person_id": some.person.to_numpy(),
            f"{domain}_concept_id": [CONCEPTS[key] for key in keys],
            f"{when}date": some.start.dt.date.to_numpy(), f"{when}datetime": some.start.to_numpy(),
        })  # fmt: skip
    some, table = event[event.domain == "measurement"], tables["measurement"]
    table["value_as_number"] = some.value.to_numpy()
    table["value_as_concept_id"] = [CONCEPTS.get(("SNOMED", one), 0) for one in some.result]
    table["unit_concept_id"] = [CONCEPTS.get(("UCUM", one), 0) for one in some.unit]
    table["unit_source_value"] = some.unit.to_numpy()
    return tables


def hostile_tables(hospital):
    """The tables with records of persons who are no adults in the cohort, that would break dates,
    sums and products."""
    tables = omop_tables(hospital)
    far, never = pd.Timestamp("2261-01-01"), 2**63 - 1
    person = tables["person"]
    more = [[9001, 8507, never, never, never], [9002, 8507, -never, 13, 40]]
    tables["person"] = pd.concat([person, pd.DataFrame(more, columns=person.columns)])
    for name in ("visit_occurrence", "measurement"):
        table = tables[name].tail(4).copy()
        for column in table.columns[table.columns.str.endswith("datetime")]:
            table[column] = far
        table["person_id"] = [9001, 9002, 9001, 9002]
        if name == "measurement":
            table["measurement_concept_id"], table["unit_concept_id"] = 3000483, 8753
            table["value_as_number"] = [1e308, -1e308, np.inf, 1e15]
        tables[name] = pd.concat([tables[name], table])
    return tables


def write_omop(folder, hospital, form="csv"):
    """A folder of CSV (comma or tab) or Parquet files, or one DuckDB file."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(str(folder / "cdm.duckdb") if form == "duckdb" else ":memory:")
    for name, frame in omop_tables(hospital).items():
        if form in ("csv", "tsv"):
            mark = "," if form == "csv" else "\t"
            frame.to_csv(folder / f"{name.upper()}.csv", index=False, sep=mark)
            continue
        connection.register("frame", frame)
        made = (
            f"CREATE TABLE {name} AS SELECT * FROM frame"
            if form == "duckdb"
            else f"COPY (SELECT * FROM frame) TO '{folder / name}.parquet'"
        )
        connection.execute(made)
        connection.unregister("frame")
    connection.close()
    return folder / "cdm.duckdb" if form == "duckdb" else folder


# --- FHIR -------------------------------------------------------------------------------------------------------------


def resources(hospital):
    """Every resource, by person; blood pressures as components of one observation."""
    found = {}

    def add(person, kind, when=None, **fields):
        number = sum(map(len, found.values()))
        subject = {} if kind == "Patient" else {"subject": {"reference": f"Patient/p{person}"}}
        named = fields.pop("id", f"r{number}")
        found.setdefault(person, []).append(
            {"resourceType": kind, "id": named, **subject, **fields}
        )

    def code(vocabulary, one):
        local = {"system": "urn:local", "code": "x"}
        return {"coding": [local, {"system": SYSTEM[vocabulary], "code": one}]}

    for one in hospital["person"].itertuples():
        died = {} if pd.isna(one.died) else {"deceasedDateTime": f"{one.died:%Y-%m-%d}"}
        add(one.person, "Patient", id=f"p{one.person}", gender=one.sex, birthDate=f"{one.born:%Y-%m-%d}", **died)  # fmt: skip
    for one in hospital["visit"].itertuples():
        kind = {"system": "http://terminology.hl7.org/CodeSystem/v3-ActCode"}
        kind["code"] = VISIT[one.kind][1]
        period = {"start": _time(one.start), "end": _time(one.stop)}
        add(one.person, "Encounter", status="finished", **{"class": kind}, period=period)
    names = {"condition": ("Condition", "code", "onsetDateTime"),
             "drug": ("MedicationRequest", "medicationCodeableConcept", "authoredOn"),
             "procedure": ("Procedure", "code", "performedDateTime")}  # fmt: skip
    pressure = None
    for one in hospital["event"].itertuples():
        if one.domain != "measurement":
            kind, field, when = names[one.domain]
            status = {} if kind == "Condition" else {"status": "completed"}
            add(one.person, kind, **status, **{field: code(one.vocabulary, one.code), when: _time(one.start)})  # fmt: skip
            continue
        value = {"valueCodeableConcept": code("SNOMED", one.result)} if isinstance(one.result, str) else {
            "valueQuantity": {"value": one.value, "unit": one.unit, "code": one.unit}
        }  # fmt: skip
        part = {"code": code("LOINC", one.code), **value}
        if one.code == "8480-6":
            pressure = part
            continue
        if one.code == "8462-4":
            part = {"code": code("LOINC", "85354-9"), "component": [pressure, part]}
        add(one.person, "Observation", status="final", effectiveDateTime=_time(one.start), **part)
    return found


def _time(when):
    return f"{when:%Y-%m-%dT%H:%M:%S}+01:00"


def write_fhir(folder, hospital, form="ndjson"):
    """A bulk export (one file for each type), or one bundle for each person."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    every = resources(hospital)
    if form == "bundle":
        for person, some in every.items():
            entries = []
            for one in some:
                named = dict(one)
                if one["resourceType"] != "Patient":  # known by its fullUrl alone
                    del named["id"]
                if "subject" in named:
                    named["subject"] = {"reference": f"urn:uuid:p{person}"}
                entries.append({"fullUrl": f"urn:uuid:{one['id']}", "resource": named})
            text = json.dumps({"resourceType": "Bundle", "type": "collection", "entry": entries})
            (folder / f"bundle{person}.json").write_text(text)
        return folder
    for some in every.values():
        for one in some:
            with (folder / f"{one['resourceType']}.000.ndjson").open("a") as file:
                file.write(json.dumps(one) + "\n")
    return folder


# --- a study ----------------------------------------------------------------------------------------------------------


def said(*called):
    """What a command of Suture says; it must succeed."""
    found = CliRunner().invoke(app, [*map(str, called)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def train_in_both_engines(folder, features, sites, outcome, **changes):
    """A private study of real sources: drafted from the cohort file, checked and signed at each
    site, then run in one process and over Flower by sites with the same secrets.

    ``sites`` are, for each name, its records and how many patients it declares; ``changes`` are to
    the drafted study. Gives both results, which are compared: under masks every sum is a release
    with noise of its own, so those models differ; what was done and paid does not.
    """
    from suture.network.coordinator import Remote
    from suture.network.local import LocalFlower

    folder.mkdir(parents=True)
    (folder / "features.toml").write_text(features)
    asked = ("--records", "cdm", "--outcome", outcome, "--leave-out", "died")
    said("init", folder / "s", "--from", folder / "features.toml", *asked)
    file = folder / "s" / "study.toml"
    head, rest = file.read_text().split("[[site]]")
    rest = "[schema]" + rest.split("[schema]", 1)[1]
    told = [
        f"[[site]]\nname = {json.dumps(name)}\npatients = {patients}\n"
        f"data = {inline({**place, 'features': str(folder / 'features.toml')})}\n"
        for name, (place, patients) in sites.items()
    ]
    file.write_text("\n".join([head, *told, rest]))
    study = Study.from_toml(file).replace(federation={"deadline": 120}, **changes)
    file.write_text(study.to_toml())
    for number, name in enumerate(sites, 1):
        home = folder / "s" / ".suture" / name
        home.mkdir(parents=True)
        (home / "secret.key").write_bytes(bytes([number]) * 32)
    said("check", file, "--sign", "A. Kowal", "--even-so", "a test")
    shutil.copytree(folder / "s", folder / "t")  # the same question, of new ledgers
    here = conduct.run(study, base=folder / "s", out=folder / "one", threads=1)
    engine = Remote(LocalFlower())
    there = conduct.run(study, base=folder / "t", out=folder / "two", engine=engine)
    assert here.model.keys() == there.model.keys()
    assert here.data["privacy"]["sites"] == there.data["privacy"]["sites"]
    assert here.data["privacy"]["sites"].keys() == sites.keys()
    assert all(0 < spent <= 8 for spent in here.data["privacy"]["sites"].values())
    (told,), (other,) = (found.data["methods"].values() for found in (here, there))
    assert told["rounds_done"] == other["rounds_done"] == study.method.rounds
    equal = all(np.array_equal(here.model[name], there.model[name]) for name in here.model)
    if study.protection.sum == "masked":
        assert not equal
    else:
        assert equal
        for key in ("metrics", "history", "communication"):
            assert here.data[key] == there.data[key], key
    return here, there


def dealt(place, of, patients):
    """Sites that each have a share of the people of one source."""
    shares = [{"by": "person_id", "number": number, "of": of} for number in range(1, of + 1)]
    return {f"site{share['number']}": ({**place, "share": share}, patients) for share in shares}


def inline(value):
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
