"""The eICU Collaborative Research Database with one row per patient: the cohort of VEIL, built by
DuckDB, out of core.

Adults, first unit stay of their first recorded hospital stay, what was charted in the first 24
hours: vital signs as mean, minimum, maximum and standard deviation, laboratory tests as means,
demographics, unit and hospital traits; outcome: died in hospital. Two layouts are read, whichever
the folder holds:

- the tables as PhysioNet publishes them (``patient``, ``hospital``, ``apacheApsVar``,
  ``vitalPeriodic``, ``lab``, as ``.csv.gz``, ``.csv`` or ``.parquet``): the demo's or the full
  database's. DuckDB streams them and spills to a temporary folder, so that the 150 million rows of
  ``vitalPeriodic`` need no more memory than it is given;
- ``hourly_mortality24/dyn.parquet`` in place of the two large tables: hourly values of the first 24
  hours.

Patients without any vital sign in the first 24 hours are left out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from suture.errors import DataError
from suture.site.sources import Column, Columns
from suture.site.sql import quoted

if TYPE_CHECKING:
    import duckdb

VITALS = {  # feature -> (hourly name, column of vitalPeriodic)
    "heart_rate": ("hr", "heartrate"),
    "respiratory_rate": ("resp", "respiration"),
    "spo2": ("o2sat", "sao2"),
    "temperature": ("temp", "temperature"),
    "systolic_bp": ("sbp", "systemicsystolic"),
    "diastolic_bp": ("dbp", "systemicdiastolic"),
    "mean_bp": ("map", "systemicmean"),
}
LABS = {  # feature -> (hourly name, labname of lab)
    "lactate": ("lact", "lactate"),
    "creatinine": ("crea", "creatinine"),
    "bun": ("bun", "BUN"),
    "bilirubin": ("bili", "total bilirubin"),
    "albumin": ("alb", "albumin"),
    "sodium": ("na", "sodium"),
    "potassium": ("k", "potassium"),
    "bicarbonate": ("bicar", "bicarbonate"),
    "glucose": ("glu", "glucose"),
    "haemoglobin": ("hgb", "Hgb"),
    "platelets": ("plt", "platelets x 1000"),
    "white_cells": ("wbc", "WBC x 1000"),
    "inr": ("inr_pt", "PT - INR"),
    "ph": ("ph", "pH"),
    "pao2": ("po2", "paO2"),
}
WHERE = (
    "the eICU demo (open access) of physionet.org/content/eicu-crd-demo, or the full database "
    "(credentialed) of physionet.org/content/eicu-crd, in a folder 'eicu_demo'"
)


def data_folder(name: str, what: str = WHERE) -> Path:
    """A folder of real data: under SUTURE_DATA, else in ../shared/data beside the checkout."""
    given = os.environ.get("SUTURE_DATA")
    root = Path(given) if given else Path(__file__).parents[2].parent / "shared" / "data"
    if not (root / name).is_dir():
        raise DataError(
            f"the data set {name!r} is not in {root}; put it there, or set SUTURE_DATA to the "
            f"folder that holds {name}/. It is: {what}"
        )
    return root / name


def stays(folder: Path) -> Columns:
    """One row per patient as columns, ordered by hospital and patient."""

    def prepare(connection: duckdb.DuckDBPyConnection) -> None:
        for table in ("patient", "hospital", "apacheApsVar"):
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM {_table(folder, table)}")
        _charted(connection, folder)

    return queried(_QUERY, folder, WHERE, prepare)


def queried(
    query: str,
    folder: Path,
    what: str,
    prepare: Callable[[duckdb.DuckDBPyConnection], None] = lambda connection: None,
    files: Mapping[str, Path] = MappingProxyType({}),
) -> Columns:
    """What DuckDB answers about published files, as columns; ``what`` they are, for an error.
    ``files`` are the query's parameters."""
    import duckdb

    with tempfile.TemporaryDirectory() as spill:
        connection = duckdb.connect(
            config={"memory_limit": "1GB", "temp_directory": spill, "threads": 2}
        )
        try:
            prepare(connection)
            found = connection.execute(
                query, {name: str(path) for name, path in files.items()}
            ).fetchnumpy()
        except duckdb.Error as error:
            # Column names and types only: DuckDB quotes no cell of these queries except in
            # conversion errors.
            kind = type(error).__name__
            raise DataError(
                f"{folder}: the tables do not have the published columns ({kind}) of {what}"
            ) from None
        finally:
            connection.close()
    return {name: _plain(np.asanyarray(column)) for name, column in found.items()}


def _table(folder: Path, name: str) -> str:
    for ending in (".csv.gz", ".csv", ".parquet"):
        path = folder / f"{name}{ending}"
        if path.exists() and ending == ".parquet":
            return f"read_parquet({quoted(str(path))})"
        if path.exists():
            # Everything as text: types are cast where they are used, so that one odd cell far down
            # is no error.
            return f"read_csv({quoted(str(path))}, all_varchar = true)"
    raise DataError(f"{folder} has no table {name} (.csv.gz, .csv or .parquet) of {WHERE}")


def _charted(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Views ``signs`` and ``tests``: (stay, name, value) in the first 24 hours."""
    hourly = folder / "hourly_mortality24" / "dyn.parquet"
    if hourly.exists():
        source = f"(SELECT * FROM read_parquet({quoted(str(hourly))}) WHERE time < 24 * 3600)"
        for view, names in (("signs", VITALS), ("tests", LABS)):
            columns = {name: column for name, (column, _) in names.items()}
            connection.execute(f"CREATE VIEW {view} AS {_long(source, 'stay_id', columns)}")
        return
    first_day = "TRY_CAST({} AS INTEGER) BETWEEN 0 AND 1440"
    charted, day = _table(folder, "vitalPeriodic"), first_day.format("observationoffset")
    signs = {name: column for name, (_, column) in VITALS.items()}
    periodic = _long(f"(SELECT * FROM {charted} WHERE {day})", "patientunitstayid", signs)
    connection.execute(f"CREATE VIEW signs AS {periodic}")
    cases = " ".join(f"WHEN '{lab}' THEN '{name}'" for name, (_, lab) in LABS.items())
    connection.execute(
        "CREATE VIEW tests AS SELECT TRY_CAST(patientunitstayid AS BIGINT) AS stay, "
        f"CASE labname {cases} END AS name, TRY_CAST(labresult AS DOUBLE) AS value "
        f"FROM {_table(folder, 'lab')} WHERE {first_day.format('labresultoffset')}"
    )


def _long(source: str, stay: str, columns: dict[str, str]) -> str:
    return " UNION ALL ".join(
        f"SELECT TRY_CAST({stay} AS BIGINT) AS stay, '{name}' AS name, "
        f"TRY_CAST({column} AS DOUBLE) AS value FROM {source}"
        for name, column in columns.items()
    )


_STATISTICS = {"mean": "avg", "min": "min", "max": "max", "std": "stddev_pop"}
_SIGNS = ", ".join(
    f"{function}(value) FILTER (name = '{name}') AS {name}_{key}"
    for name in VITALS
    for key, function in _STATISTICS.items()
)
_TESTS = ", ".join(f"avg(value) FILTER (name = '{name}') AS {name}" for name in LABS)
_QUERY = f"""
WITH people AS (
  SELECT *, CASE WHEN age LIKE '>%' THEN 90 ELSE TRY_CAST(age AS DOUBLE) END AS years,
    row_number() OVER (PARTITION BY uniquepid ORDER BY TRY_CAST(hospitaldischargeyear AS INTEGER),
      TRY_CAST(patienthealthsystemstayid AS BIGINT), TRY_CAST(unitvisitnumber AS INTEGER)) AS turn
  FROM patient
), first AS (
  SELECT * FROM people
  WHERE turn = 1 AND TRY_CAST(unitvisitnumber AS INTEGER) = 1 AND years >= 18
    AND hospitaldischargestatus IN ('Alive', 'Expired')
), signs_of AS (SELECT stay, {_SIGNS} FROM signs WHERE isfinite(value) GROUP BY stay),
tests_of AS (SELECT stay, {_TESTS} FROM tests WHERE name IS NOT NULL AND isfinite(value) GROUP BY stay),
coma AS (
  SELECT TRY_CAST(patientunitstayid AS BIGINT) AS stay,
    CASE WHEN least(TRY_CAST(eyes AS INTEGER), TRY_CAST(motor AS INTEGER), TRY_CAST(verbal AS INTEGER)) > 0
      THEN TRY_CAST(eyes AS INTEGER) + TRY_CAST(motor AS INTEGER) + TRY_CAST(verbal AS INTEGER) END AS gcs
  FROM apacheApsVar
)
SELECT first.uniquepid AS patient_id, first.hospitalid AS hospital, years AS age, gender AS sex,
  CASE WHEN ethnicity IN ('', 'Other/Unknown') THEN 'Other' ELSE ethnicity END AS ethnicity,
  CASE WHEN TRY_CAST(admissionheight AS DOUBLE) BETWEEN 100 AND 230 AND TRY_CAST(admissionweight AS DOUBLE) BETWEEN 25 AND 350
    THEN TRY_CAST(admissionweight AS DOUBLE) / (TRY_CAST(admissionheight AS DOUBLE) / 100) ^ 2 END AS bmi,
  unittype AS unit_type, numbedscategory AS beds, teachingstatus AS teaching, region,
  signs_of.* EXCLUDE (stay), tests_of.* EXCLUDE (stay), coma.gcs,
  (hospitaldischargestatus = 'Expired')::TINYINT AS died_in_hospital
FROM first JOIN signs_of ON signs_of.stay = TRY_CAST(first.patientunitstayid AS BIGINT)
LEFT JOIN tests_of ON tests_of.stay = signs_of.stay LEFT JOIN coma ON coma.stay = signs_of.stay
LEFT JOIN hospital ON hospital.hospitalid = first.hospitalid
ORDER BY TRY_CAST(first.hospitalid AS INTEGER), first.uniquepid
"""


def _plain(column: Column) -> Column:
    """Masked numbers to NaN, masked texts to None."""
    if not isinstance(column, np.ma.MaskedArray):
        return np.asarray(column)
    if column.dtype.kind in "iuf":
        return np.asarray(np.ma.filled(column.astype(np.float64), np.nan))
    texts = np.asarray(np.ma.getdata(column), object).copy()
    texts[np.ma.getmaskarray(column)] = None
    return texts
