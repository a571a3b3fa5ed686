"""OMOP measurements to features: Suture's query beside one written by hand, each in a process of its own.

    python benchmarks/omop.py --patients 1000000 --rows 50000000

Generates a folder of Parquet files (person, visit_occurrence, measurement, concept; about 0.5 GB for
50 million rows), or the same tables in a DuckDB file, and takes ten columns of each person's first
inpatient visit. The query written by hand is what a careful analyst writes for these very files: it
knows the concept ids and the units, takes no care of ties and sums doubles in any order. Both run
with the same settings of DuckDB, and are compared by processor time, which a busy machine changes
least. The values must agree to 1e-9, relatively.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FEATURES = """
[cohort]
visit = "inpatient"
age = [18, 120]
[features]
age = { person = "age" }
sex = { person = "sex" }
glucose = { measurement = { LOINC = ["2339-0"] }, window = ["-365d", "0d"] }
glucose_mean = { measurement = { LOINC = ["2339-0"] }, window = ["-365d", "0d"], take = "mean" }
creatinine = { measurement = { LOINC = ["2160-0"] }, window = ["-365d", "0d"], take = "max" }
systolic = { measurement = { LOINC = ["8480-6"] }, window = ["-365d", "0d"], take = "min" }
systolic_first = { measurement = { LOINC = ["8480-6"] }, window = ["-365d", "0d"], take = "first" }
sodium = { measurement = { LOINC = ["2951-2"] }, window = ["-365d", "0d"], take = "mean" }
potassium = { measurement = { LOINC = ["2823-3"] }, window = ["-30d", "0d"] }
haemoglobins = { measurement = { LOINC = ["718-7"] }, window = ["-365d", "0d"], take = "count" }
[outcome]
again = { visit = "inpatient", window = ["end+1d", "end+30d"] }
"""
CODES = ("2339-0", "2160-0", "8480-6", "2951-2", "2823-3", "718-7")
UNITS = ("mg/dL", "mg/dL", "mm[Hg]", "mmol/L", "mmol/L", "g/dL")

GENERATE = """
CREATE TABLE person AS SELECT i + 1 AS person_id, CASE i % 2 WHEN 0 THEN 8507 ELSE 8532 END AS gender_concept_id,
  1930 + (hash(i) % 70)::INT AS year_of_birth, 1 + (hash(i + 1) % 12)::INT AS month_of_birth,
  1 + (hash(i + 2) % 28)::INT AS day_of_birth FROM range({patients}) t(i);
CREATE TABLE visit_occurrence AS SELECT i + 1 AS visit_occurrence_id, 1 + i % {patients} AS person_id,
  CASE hash(i * 3) % 2 WHEN 0 THEN 9201 ELSE 9202 END AS visit_concept_id,
  TIMESTAMP '2020-01-01' + INTERVAL (hash(i * 5) % 1000000) MINUTE AS visit_start_datetime,
  visit_start_datetime::DATE AS visit_start_date,
  visit_start_datetime + INTERVAL (hash(i * 7) % 10000) MINUTE AS visit_end_datetime,
  visit_end_datetime::DATE AS visit_end_date FROM range({patients} * 3) t(i);
CREATE TABLE measurement AS SELECT i + 1 AS measurement_id, 1 + (i // {each}) % {patients} AS person_id,
  (hash(i * 11) % 40)::INT AS k, 3000000 + k AS measurement_concept_id,
  TIMESTAMP '2019-06-01' + INTERVAL (hash(i * 13) % 1200000) MINUTE AS measurement_datetime,
  measurement_datetime::DATE AS measurement_date,
  k = 0 AND hash(i * 17) % 3 = 0 AS molar,
  CASE WHEN molar THEN 3 + (hash(i * 19) % 1500) / 100.0 ELSE 50 + (hash(i * 19) % 20000) / 100.0 END::DOUBLE
    AS value_as_number,
  CASE WHEN molar THEN 8753 WHEN k > 5 THEN 0 ELSE 9000 + k END AS unit_concept_id,
  '' AS unit_source_value FROM range({rows}) t(i);
"""

BY_HAND = """
WITH stay AS (
  SELECT v.person_id, min(v.visit_start_datetime) AS start,
    arg_min(v.visit_end_datetime, v.visit_start_datetime) AS stop FROM {visit} v
  JOIN {person} p USING (person_id)
  WHERE v.visit_concept_id IN (9201, 262)
    AND date_sub('year', make_date(p.year_of_birth, p.month_of_birth, p.day_of_birth),
                 v.visit_start_datetime::DATE) BETWEEN 18 AND 120
  GROUP BY v.person_id),
m AS (
  SELECT s.person_id,
    arg_max(value, seen) FILTER (WHERE c = 3000000) AS glucose, avg(value) FILTER (WHERE c = 3000000) AS glucose_mean,
    max(value) FILTER (WHERE c = 3000001) AS creatinine, min(value) FILTER (WHERE c = 3000002) AS systolic,
    arg_min(value, seen) FILTER (WHERE c = 3000002) AS systolic_first, avg(value) FILTER (WHERE c = 3000003) AS sodium,
    arg_max(value, seen) FILTER (WHERE c = 3000004 AND seen::DATE >= start::DATE - 30) AS potassium,
    count(*) FILTER (WHERE c = 3000005) AS haemoglobins
  FROM stay s JOIN (
    SELECT person_id, measurement_concept_id AS c, measurement_datetime AS seen,
      CASE WHEN unit_concept_id = 8753 AND measurement_concept_id = 3000000
        THEN value_as_number * 18.0156 ELSE value_as_number END AS value FROM {measurement}
    WHERE measurement_concept_id BETWEEN 3000000 AND 3000005) e
    ON e.person_id = s.person_id AND e.seen::DATE BETWEEN s.start::DATE - 365 AND s.start::DATE
  GROUP BY s.person_id),
r AS (
  SELECT s.person_id, 1 AS again FROM stay s JOIN {visit} v ON v.person_id = s.person_id AND v.visit_concept_id IN (9201, 262)
    AND v.visit_start_datetime::DATE BETWEEN s.stop::DATE + 1 AND s.stop::DATE + 30 GROUP BY s.person_id)
SELECT s.person_id, date_sub('year', make_date(p.year_of_birth, p.month_of_birth, p.day_of_birth), s.start::DATE) AS age,
  CASE p.gender_concept_id WHEN 8507 THEN 'male' ELSE 'female' END AS sex,
  m.* EXCLUDE (person_id, haemoglobins), coalesce(haemoglobins, 0) AS haemoglobins, coalesce(again, 0) AS again
FROM stay s JOIN {person} p USING (person_id) LEFT JOIN m USING (person_id) LEFT JOIN r USING (person_id)
"""


def generate(folder: Path, patients: int, rows: int, form: str) -> Path:
    """The tables, as Parquet files or in one DuckDB file."""
    import duckdb

    place = folder / "cdm.duckdb"
    with duckdb.connect(str(place), config={"memory_limit": "2GB", "threads": "2"}) as connection:
        connection.execute(
            GENERATE.format(patients=patients, rows=rows, each=max(1, rows // patients))
        )
        connection.execute("ALTER TABLE measurement DROP k")
        connection.execute("ALTER TABLE measurement DROP molar")
        units = [(9000 + i, "UCUM", unit) for i, unit in enumerate(UNITS)] + [
            (8753, "UCUM", "mmol/L")
        ]
        loinc = [(3000000 + i, "LOINC", code) for i, code in enumerate(CODES)]
        listed = ", ".join(f"({i}, '{v}', '{c}', 'S')" for i, v, c in loinc + units)
        names = "t(concept_id, vocabulary_id, concept_code, standard_concept)"
        connection.execute(f"CREATE TABLE concept AS SELECT * FROM (VALUES {listed}) {names}")
        if form == "duckdb":
            return place
        for (table,) in connection.execute(
            "SELECT table_name FROM information_schema.tables"
        ).fetchall():
            connection.execute(f"COPY {table} TO '{folder / table}.parquet'")
    place.unlink()
    return folder


def measured(which: str, place: Path, features: Path, out: Path) -> None:
    """One way to the columns, in this process; seconds and memory go to a file."""
    import numpy as np

    from suture.site import sources

    begun, worked = time.perf_counter(), time.process_time()
    if which == "suture":
        spec = sources.SourceSpec(omop=str(place), features=str(features))
        with sources.open_table(spec, None, site="benchmark") as opened:
            names = dict(opened.names)
            for name in names.keys() - {"sex"}:
                names[name] = f"coalesce({names[name]}::DOUBLE, 'nan'::DOUBLE)"
            found = opened.select(names)
    else:
        whole = place.is_file()
        connection = sources._database(place, "benchmark") if whole else sources._connect()
        tables = {t: name if whole else f"'{place}/{name}.parquet'" for t, name in
                  (("person", "person"), ("visit", "visit_occurrence"), ("measurement", "measurement"))}  # fmt: skip
        found = connection.execute(BY_HAND.format(**tables)).fetchnumpy()
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    status = Path("/proc/self/status").read_text()  # the peak of this process alone
    memory = int(status.split("VmHWM:")[1].split()[0]) / 2**20
    columns = {}
    order = np.argsort(np.asarray(found["person_id"], float))
    for name, column in found.items():
        if name != "sex":
            columns[name] = np.ma.filled(np.ma.asarray(column, float), np.nan)[order]
    np.savez(out, **columns)
    print(json.dumps({"seconds": seconds, "processor": worked, "GB": memory, "rows": len(order)}))


def main() -> None:
    """Generate, measure both in turn, compare."""
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--form", choices=("parquet", "duckdb"), default="parquet")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        which, place, features, out = asked.measure
        measured(which, Path(place), Path(features), Path(out))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.perf_counter()
        place = generate(folder, asked.patients, asked.rows, asked.form)
        print(f"generated in {time.perf_counter() - begun:.0f} s", flush=True)
        features = folder / "features.toml"
        features.write_text(FEATURES)
        best: dict[str, dict[str, float]] = {}
        for _ in range(asked.times):
            for which in ("by hand", "suture"):
                command = [sys.executable, __file__, "--measure", which, place, features]
                command = [*map(str, command), str(folder / f"{which}.npz")]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found = json.loads(said.splitlines()[-1])
                print(which, found, flush=True)
                if which not in best or found["processor"] < best[which]["processor"]:
                    best[which] = found
        hand, ours = (dict(np.load(folder / f"{which}.npz")) for which in ("by hand", "suture"))
        worst = 0.0
        for name, column in hand.items():
            same = np.isclose(ours[name], column, rtol=1e-9, atol=0, equal_nan=True)
            worst = max(worst, 1 - float(same.mean()))
        ratio = best["suture"]["processor"] / best["by hand"]["processor"]
        print(json.dumps({"patients": asked.patients, "measurements": asked.rows, "form": asked.form,
                          "best": best, "times the query by hand": round(ratio, 2),
                          "cells that differ (ties)": worst}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
