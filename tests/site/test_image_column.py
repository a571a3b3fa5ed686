"""Folders of images and a table: the same patients as from memory, broken files named, refused or
skipped, counted."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from suture import cohorts
from suture.cohorts.starter import KINDS, SIDE, write_imaging_starter
from suture.engine import conduct, federation
from suture.errors import DataError, StudyError
from suture.schema.table import Flag, Image, Schema
from suture.site.cohort import count_training_patients, load, refusal
from suture.site.images import ImageFiles, resample
from suture.site.reading import encode_rows
from suture.site.sources import SourceSpec
from suture.study import Study

pytest.importorskip("pydicom", reason="pip install 'suture[imaging]'")
pytest.importorskip("PIL", reason="pip install 'suture[imaging]'")
IMAGES = 16


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    write_imaging_starter(folder, IMAGES)
    return folder


def spoilt(films: Path, tmp_path: Path, rows: dict[int, str] | None = None) -> Path:
    """A copy of the first hospital in which some rows name other files."""
    table = tmp_path / "patients.csv"
    with (films / "hospital-01" / "patients.csv").open(encoding="utf-8") as file:
        lines = list(csv.reader(file))
    for row, name in (rows or {}).items():
        lines[row][0] = name
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    (tmp_path / "images").symlink_to(films / "hospital-01" / "images")
    (tmp_path / "images2").mkdir()
    return table


def arguments(**more):
    return {"site": "h", "holdout": 0.0, "split_key": "k", **more}


@pytest.mark.parametrize("hospital", range(len(KINDS)), ids=KINDS)
def test_files_give_the_same_patients_as_memory(films: Path, hospital: int) -> None:
    """Polarity, bit depth, window and compression undone: only float32's rounding differs."""
    cohort = cohorts.load("radiographs", 42, hospitals=len(KINDS), images=IMAGES, size=SIDE)
    site = cohort.sites[hospital]
    small = np.stack([resample(one.astype(np.float32) / 255, 32) for one in site.table["image"]])
    schema = cohort.schema.model_copy(update={"features": {"image": Image(size=32)}})
    memory = load({**site.table, "image": small}, schema, "abnormal", **arguments())
    source = films / site.name / "patients.csv"
    files = load(source, schema, "abnormal", **arguments(images=ImageFiles(folder="images")))
    assert files.train.patients == memory.train.patients == 14
    assert (files.train.starts == memory.train.starts).all()
    assert (files.train.group == memory.train.group).all()
    # Rows of one patient are in the order of a digest of name or content, so patients' sums are
    # compared.
    for one, other in ((files, memory), (memory, files)):
        sums = np.add.reduceat(one.train.x, one.train.starts[:-1])
        others = np.add.reduceat(other.train.x, other.train.starts[:-1])
        assert sums == pytest.approx(others, abs=2e-6)


def test_the_order_of_the_table_changes_nothing(films: Path, tmp_path: Path) -> None:
    table = spoilt(films, tmp_path)
    lines = table.read_text(encoding="utf-8").splitlines()
    schema = Study.from_toml(films / "study.toml").table
    before = load(table, schema, "abnormal", **arguments(images=ImageFiles(folder="images")))
    table.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n", encoding="utf-8")
    after = load(table, schema, "abnormal", **arguments(images=ImageFiles(folder="images")))
    assert before.train.fingerprint() == after.train.fingerprint()


def test_broken_files_are_refused_by_name(films: Path, tmp_path: Path) -> None:
    table = spoilt(films, tmp_path, {1: "gone.dcm", 2: "../images2/x.dcm", 3: "", 4: "/etc/passwd"})
    schema = Study.from_toml(films / "study.toml").table
    loaded = load(table, schema, "abnormal", **arguments(images=ImageFiles(folder="images"))).loaded
    assert len(loaded.problems) == 1
    assert (
        "4 of 16 image files cannot be used (2 x lies outside the folder of images, 1 x there is "
        "no such" in loaded.problems[0]
    )
    message = str(refusal(SourceSpec(path=str(table)), "h", loaded))
    for part in (
        "gone.dcm: there is no such file",
        "x.dcm: lies outside",
        "(no file named): no file is named",
        "passwd: lies",
    ):
        assert part in message
        assert part.split(":")[0] not in loaded.problems[0]
    assert 'broken = "skip"' in message
    # counting reads the patient column alone, and so does not meet them
    assert (
        count_training_patients(table, schema, **arguments(images=ImageFiles(folder="images")))
        == 14
    )


def test_skipped_rows_do_not_count(films: Path, tmp_path: Path) -> None:
    """Rows 1 and 15 are the first patient's two images; row 5 belongs to somebody with one."""
    table = spoilt(films, tmp_path, {1: "gone.dcm", 5: "gone too.dcm"})
    schema = Study.from_toml(films / "study.toml").table
    skip = ImageFiles(folder="images", broken="skip")
    found = load(table, schema, "abnormal", **arguments(images=skip))
    assert (
        found.train.patients
        == count_training_patients(table, schema, **arguments(images=skip))
        == 13
    )
    assert found.train.rows == 14
    assert len(found.loaded.skipped) == 2
    assert "2 of 16 image files cannot be used" in " ".join(found.loaded.warnings)
    assert "gone" not in " ".join(found.loaded.warnings)  # names stay with the site
    (tmp_path / "all").mkdir()
    everything = spoilt(films, tmp_path / "all", dict.fromkeys(range(1, 17), "x"))
    nobody = load(everything, schema, "abnormal", **arguments(images=skip))
    assert (nobody.train.patients, len(nobody.loaded.skipped), nobody.loaded.problems) == (
        0,
        16,
        (),
    )
    assert count_training_patients(everything, schema, **arguments(images=skip)) == 0


def test_a_run_on_folders_of_files(films: Path, tmp_path: Path) -> None:
    study = Study.from_toml(films / "study.toml").replace(
        model={"kind": "dense", "hidden": [4]},
        method={"name": "fedavg", "rounds": 2, "local_epochs": 1, "batch": 16, "rate": 0.1},
        images={"broken": "skip"},
    )
    broken = films / "hospital-02" / "images" / "0003.png"
    content = broken.read_bytes()
    broken.write_bytes(content[:100])
    try:
        result = conduct.run(study, out=tmp_path / "run", base=films)
    finally:
        broken.write_bytes(content)
    sites = result.data["cohort"]["sites"]
    assert set(sites) == {f"hospital-0{i}" for i in range(1, 5)}
    assert result.data["model"]["features"] == ["image"]
    assert result.data["privacy"]["epsilon"] <= 8
    # How many files are broken is a count of rows: under a promise it stays at the site.
    assert not any("image files" in text for text in result.data["warnings"])
    noted = (films / ".suture" / "hospital-02" / "skipped-images.txt").read_text(encoding="utf-8")
    assert noted.startswith("0003.png: ")
    assert "0003.png" not in json.dumps(result.data)
    paths = [
        films / "hospital-01" / "images" / "0001.dcm",
        films / "hospital-04" / "images" / "0002.png",
    ]
    risk = result.predict({"image": [str(path) for path in paths]})
    assert risk.shape == (2,)
    with pytest.raises(DataError, match="no such file"):
        encode_rows({"image": ["nowhere.dcm"]}, Schema.parse(result.data["model"]["schema"]))


def test_a_size_is_said_once() -> None:
    sites = [{"name": "a", "data": "a.csv"}]
    schema = {"patient": "id", "features": {"film": {"kind": "image"}}}
    study = Study(name="s", outcome="ill", sites=sites, schema=schema, images={"size": 32})
    assert study.table.image_size == 32
    assert Study.from_text(study.to_toml()) == study
    assert study.replace(images={"size": 48}).table.width == 48 * 48
    assert Study(name="s", outcome="ill", sites=sites, schema=schema).images.size == 64
    other = {"patient": "id", "features": {"film": {"kind": "image", "size": 16}}}
    assert Study(name="s", outcome="ill", sites=sites, schema=other).images.size == 16
    with pytest.raises(StudyError, match="say it once"):
        Study(name="s", outcome="ill", sites=sites, schema=other, images={"size": 32})
    with pytest.raises(StudyError, match="needs a column of images"):
        Study(
            name="s",
            outcome="ill",
            sites=sites,
            schema={"features": {"a": {"kind": "flag"}}},
            images={"size": 32},
        )
    with pytest.raises(StudyError, match="has no images"):
        federation.survey(
            Study(name="s", outcome="high_risk", cohort="cardio", images={"size": 32}), Path(), 1
        )


def test_an_image_is_the_only_feature() -> None:
    with pytest.raises(ValueError, match="an image must be the only feature"):
        Schema(features={"film": Image(), "smoker": Flag()})


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((3, 8, 9)), "expected images of 8 x 8"),
        (np.full((3, 8, 8), 2.0), "from 0 to 1"),
        (np.array(["a", "b", "c"]), "expected images of 8 x 8"),
    ],
)
def test_arrays_in_memory_are_checked(images, message) -> None:
    table = {"film": images, "ill": np.array([0, 1, 0])}
    with pytest.raises(DataError, match=message):
        load(table, Schema(features={"film": Image(size=8)}), "ill", **arguments())


def test_the_command_that_writes_them(suture_command, tmp_path: Path) -> None:
    done = suture_command("init", "films", "--images", 3, cwd=tmp_path)
    assert done.returncode == 2
    assert "16 to 5,000" in done.stderr
    done = suture_command("init", "films", "--images", 16, "--files", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "films").exists()


def test_scattering_on_folders_of_files(films: Path, tmp_path: Path) -> None:
    """As `suture init --images` writes the study: DICOM and PNG in, a private linear model out."""
    study = Study.from_toml(films / "study.toml").replace(
        name="scattering", privacy={"epsilon": 0.75}
    )
    assert (study.model.kind, study.method.name) == ("scattering", "additive")
    result = conduct.run(study, out=tmp_path / "run", base=films)
    assert result.data["privacy"]["epsilon"] <= 0.75
    risk = result.predict({"image": [str(films / "hospital-01" / "images" / "0001.dcm")]})
    assert 0 < risk[0] < 1


def test_a_residual_network_on_folders_of_files(films: Path, tmp_path: Path) -> None:
    """DICOM and PNG in, a private residual network out."""
    pytest.importorskip("opacus", reason="pip install 'suture[imaging]'")
    # Within what the run before left of the sites' lifetime budget of 10.
    study = Study.from_toml(films / "study.toml").replace(
        name="residual",
        model={"kind": "residual"},
        method={"name": "fedavg", "rounds": 1, "local_epochs": 1, "batch": 16, "rate": 0.1},
        privacy={"epsilon": 0.75},
    )
    result = conduct.run(study, out=tmp_path / "run", base=films)
    assert result.data["privacy"]["epsilon"] <= 8
    assert result.data["methods"]["fedavg"]["rounds_done"] == 1
    trained = {site: found["train"] for site, found in result.data["cohort"]["sites"].items()}
    assert trained == federation.survey(study, films, study.seed).sizes
