"""`suture explain --image` and `--regions` end to end: a run on images, a DICOM file in; page,
picture and capture out. Then the picture and the pages by themselves."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from suture.cli.main import app
from suture.cohorts.radiographs import radiographs
from suture.engine.conduct import run
from suture.engine.erase import erase
from suture.errors import DataError, StudyError
from suture.explain.hospitals import (
    explain_hospitals,
    lesion_dice,
    marked_corners,
    weights_map,
    weights_table,
)
from suture.explain.image import (
    HEAD,
    MARGIN,
    PANEL,
    ImageExplanation,
    ImageRun,
    Interval,
    draw,
    explain_file,
    notes_of,
    outside_share,
    page,
    png,
)
from suture.explain.regions import NAMES, grid
from suture.explain.run import LOWERS, RAISES, FinishedRun, write_page
from suture.explain.shapley import RegionValues, log_odds
from suture.result import Result
from suture.site.gate import named_place
from suture.study import Study

for package in ("shap", "pydicom", "PIL"):
    pytest.importorskip(package, reason="explaining images needs the imaging extra")
import pydicom  # noqa: E402
from PIL import Image, ImageColor  # noqa: E402

SIZE = 24
REGIONS = grid(32)
RED, BLUE = (np.array(ImageColor.getrgb(colour)) for colour in (RAISES, LOWERS))
RECORD = {
    "name": "films <b>",
    "outcome": "abnormal",
    "method": "fedavg",
    "methods": {"fedavg": {"label": "FedAvg"}},
    "privacy": {"protected": True, "epsilon": 7.5, "delta": 1e-5},
}
RUN = FinishedRun(Path(), Result(RECORD), None, None, Path())


def film(path, pixels, patient="MRN-7"):
    """A 12-bit MONOCHROME1 radiograph of one patient."""
    made = pydicom.dataset.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = pydicom.uid.generate_uid(None)
    made.StudyInstanceUID = pydicom.uid.generate_uid(None)
    made.PatientName, made.PatientID = "Doe^Jane", patient
    made.Modality, made.PhotometricInterpretation, made.SamplesPerPixel = "DX", "MONOCHROME1", 1
    made.Rows, made.Columns = pixels.shape
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 12, 11, 0
    made.WindowCenter, made.WindowWidth = 2048, 4096
    made.PixelData = (4095 - pixels.astype("<u2") * 16).astype("<u2").tobytes()
    pydicom.dcmwrite(path, made, enforce_file_format=True)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Three seeds of FedAvg at two generated hospitals of tiny radiographs, and a radiograph at its
    full size."""
    folder = tmp_path_factory.mktemp("films")
    study = Study(
        name="films",
        outcome="abnormal",
        cohort={"name": "radiographs", "hospitals": 2, "images": 40, "size": SIZE},
        model={"hidden": [4]},
        method={"name": "fedavg", "rounds": 3, "local_epochs": 2, "rate": 0.05},
        evaluation={"seeds": 3, "holdout": 0.5},
    )
    run(study, out=folder / "run")
    pixels = radiographs(5, hospitals=1, images=8, size=96).sites[0].table["image"][0]
    return folder / "run", film(folder / "film.dcm", pixels)


def test_one_image_at_its_site(done, tmp_path):
    folder, path = done
    found = explain_file(folder, image=path, site="hospital-02", out=tmp_path)
    assert [region["name"] for region in found["regions"]] == list(NAMES)
    total = found["base"] + sum(region["value"] for region in found["regions"])
    assert total == pytest.approx(found["log_odds"], abs=1e-6)
    assert found["additivity_error"] < 1e-6
    assert found["kernel_shap_difference"] < 0.02
    assert found["interval"][0] < found["calibrated"] < found["interval"][1]
    assert "held-out patients" in found["interval_words"]
    # The base is the model on the site's own mean image.
    trained = ImageRun.open(folder)
    mean = trained.rows_of("hospital-02").train.x.mean(axis=0, dtype=np.float64).astype(np.float32)
    assert found["base"] == pytest.approx(
        float(log_odds(trained.predict("hospital-02")(mean[None]))[0]), abs=1e-5
    )
    page = (tmp_path / "hospital-02-film.html").read_text()
    assert "Doe^Jane" not in page
    assert "left lower zone" in page
    capture = pydicom.dcmread(tmp_path / "hospital-02-film.dcm")
    with Image.open(tmp_path / "hospital-02-film.png") as picture:
        assert np.array_equal(np.asarray(picture), capture.pixel_array)
    assert b"Doe" not in (tmp_path / "hospital-02-film.dcm").read_bytes()


def test_without_a_site_seeds_give_the_interval_and_the_capture_can_be_filed(done, tmp_path):
    folder, path = done
    found = explain_file(folder, image=path, identify=True, out=tmp_path)
    assert "models of 3 seeds" in found["interval_words"]
    assert "blurred" in found["background"]
    capture = pydicom.dcmread(found["capture"])
    assert (str(capture.PatientName), capture.PatientID) == ("Doe^Jane", "MRN-7")
    rough = explain_file(folder, image=path, quick=True, out=tmp_path / "rough")
    assert (rough["exact"], rough["kernel_shap_difference"]) == (False, None)
    assert rough["additivity_error"] < 1e-6
    again = explain_file(folder, image=path, identify=True, out=tmp_path)
    assert again["regions"] == found["regions"]  # an explanation repeats to the last digit


def test_weights_that_find_no_lung_fall_back_to_the_grid_and_say_so(done, tmp_path):
    pytest.importorskip("torch")
    from suture.models.unet import init

    folder, path = done
    np.savez(tmp_path / "fresh.npz", **init(0))
    found = explain_file(folder, image=path, unet=tmp_path / "fresh.npz", out=tmp_path)
    assert "grid" in found["regions_from"]
    assert any("U-Net's masks were not used" in note for note in found["notes"])


def test_hospitals(done, tmp_path):
    folder, _ = done
    found = explain_hospitals(folder, images=3, out=tmp_path)
    assert set(found["weights"]) == {"hospital-01", "hospital-02"}
    assert all(len(row) == 13 and min(row) >= 0 for row in found["weights"].values())
    assert (tmp_path / "regions.html").exists()
    assert (
        found["dice"]["images"]
        == sum(site["images"] for site in found["dice"]["sites"].values())
        > 0
    )
    assert 0 <= found["dice"]["pixels"] <= found["dice"]["ceiling"] <= 1
    later = lesion_dice(folder, images=3, seed=2)
    assert set(later["sites"]) == {"hospital-01", "hospital-02"}
    assert "Do values point at lesions?" in (tmp_path / "regions.html").read_text()
    share = np.array([[0.05] * 12 + [0.4], [0.02] * 8 + [0.6] + [0.06] * 4])
    assert marked_corners(["a", "b"], NAMES, share) == [
        "right top corner: 60 % of the weight at b; elsewhere at most 5 %, an equal share would be "
        "8 %"
    ]


@pytest.mark.slow
def test_the_planted_scanner_shortcut_is_seen_where_it_was_planted(tmp_path):
    """Hospital 1 prints a tag on most pictures with a lesion, hospital 2 on a third of all, for no
    reason."""
    pytest.importorskip("torch")
    study = Study(
        name="shortcut",
        outcome="abnormal",
        cohort={"name": "radiographs", "hospitals": 2, "images": 200, "size": 32},
        model={"kind": "residual", "width": 8},
        method={"name": "alone", "rounds": 12, "local_epochs": 1, "rate": 0.1, "batch": 16},
    )
    run(study, out=tmp_path / "run")
    found = explain_hospitals(tmp_path / "run", images=12)
    corner = NAMES.index("right top corner")  # the picture's upper left
    share = {site: row[corner] / sum(row) for site, row in found["weights"].items()}
    assert share["hospital-01"] > 0.3  # measured: 0.70
    assert share["hospital-02"] < 1 / 13  # measured: 0.03
    assert len(found["findings"]) == 1
    assert "at hospital-01; elsewhere" in found["findings"][0]
    with pytest.raises(
        StudyError, match="name one with --site"
    ):  # every hospital has its own model
        explain_file(tmp_path / "run", image=film(tmp_path / "f.dcm", np.zeros((32, 32), np.uint8)))


def test_the_command_line(done, tmp_path):
    folder, path = done
    call = ["explain", str(folder), "--image", str(path), "--out", str(tmp_path)]
    said = CliRunner().invoke(app, call)
    assert said.exit_code == 0
    assert "95 % interval" in said.stdout
    as_json = CliRunner().invoke(app, [*call, "--json"])
    assert json.loads(as_json.stdout)["exact"] is True


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"site": "nowhere"}, StudyError, "no site 'nowhere'"),
        ({"background": "site"}, StudyError, "needs --site"),
        ({"image": "missing.dcm"}, DataError, "no such file"),
    ],
)
def test_mistakes_write_nothing(done, tmp_path, arguments, error, text):
    folder, path = done
    arguments = {"image": path, "out": tmp_path / "out"} | arguments
    arguments["image"] = path.parent / arguments["image"]
    with pytest.raises(error, match=text):
        explain_file(folder, **arguments)
    assert not (tmp_path / "out").exists()


def test_real_patients_stay_at_their_site_and_an_erased_one_is_not_explained(tmp_path):
    cohort = radiographs(3, hospitals=2, images=24, size=SIZE)
    for site in cohort.sites:
        lines = ["mrn,image,abnormal"]
        for i, (who, image, ill) in enumerate(
            zip(*(site.table[k] for k in ("patient_id", "image", "abnormal")), strict=True)
        ):
            film(tmp_path / f"{site.name}-{i}.dcm", image, f"MRN-{who}")
            lines.append(f"MRN-{who},{site.name}-{i}.dcm,{ill}")
        (tmp_path / f"{site.name}.csv").write_text("\n".join(lines) + "\n")
    study = Study(
        name="real",
        outcome="abnormal",
        sites=[
            {"name": site.name, "data": f"{site.name}.csv", "patients": 20} for site in cohort.sites
        ],
        schema={"patient": "mrn", "features": {"image": {"kind": "image"}}},
        images={"size": SIZE},
        model={"hidden": []},
        method={"name": "fedavg", "rounds": 1, "local_epochs": 1},
        privacy={"unit": "patient", "epsilon": 8.0, "accountant": "rdp"},
    )
    (tmp_path / "study.toml").write_text(study.to_toml())
    run(study, out=tmp_path / "run", base=tmp_path)
    with pytest.raises(StudyError, match="may not leave their sites"):
        explain_hospitals(tmp_path / "run")
    explain_hospitals(tmp_path / "run", site="hospital-01", images=2)
    image = tmp_path / "hospital-01-0.dcm"
    explain_file(tmp_path / "run", image=image, site="hospital-01")
    patient = str(pydicom.dcmread(image).PatientID)
    erase(named_place(tmp_path / "study.toml", "hospital-01"), patient, study=study)
    with pytest.raises(DataError, match="erased, or withdrew") as caught:
        explain_file(tmp_path / "run", image=image, site="hospital-01")
    assert patient not in str(caught.value)


def values_with(**given):
    values = np.zeros(13)
    for name, value in given.items():
        values[REGIONS.names.index(name.replace("_", " "))] = value
    return values


def found_with(values, base=-1.0):
    return RegionValues(
        REGIONS.names, values, base, base + float(values.sum()), values + 0.004, True, 2048
    )


def explanation(values, interval=True):
    found = found_with(values)
    reach = Interval("Calibrated here.", 0.4, (0.3, 0.5)) if interval else Interval("No interval.")
    image = np.random.default_rng(0).random((32, 32), np.float32)
    return ImageExplanation(found, REGIONS, "a mean image", reach, notes_of(found, image))


def test_colours_say_what_raises_and_what_lowers_on_the_right_side():
    flat = np.full((32, 32), 0.5, np.float32)
    values = values_with(left_upper_zone=1.0, right_upper_zone=-1.0)
    raster = draw(flat, REGIONS, values, ("t", "s", "n"))
    panel = raster[HEAD : HEAD + PANEL, 2 * MARGIN + PANEL : 2 * MARGIN + 2 * PANEL].astype(int)
    step = PANEL // 32
    left, right = (
        panel[6 * step, 24 * step],
        panel[6 * step, 7 * step],
    )  # the patient's left is on the image's right
    grey = 127.5
    assert np.abs(left - (0.38 * grey + 0.62 * RED)).max() <= 2
    assert np.abs(right - (0.38 * grey + 0.62 * BLUE)).max() <= 2
    heart = panel[20 * step, 17 * step - 30]
    assert np.ptp(heart) <= 1  # no value, no colour
    back = np.asarray(Image.open(io.BytesIO(png(raster))))
    assert np.array_equal(back, raster)


def test_the_page_is_self_contained_and_shows_prediction_interval_and_every_region():
    found = explanation(values_with(heart=0.75, right_top_corner=1.25))
    text = page(found, RUN, ("hôpital <i>", "film & 1"), b"png", ["a.png"])
    body = text[text.index("<header") : text.index('<script type="application/json"')]
    assert "40.0 %" in body
    assert "30.0 % to 50.0 %" in body
    for name in REGIONS.names:
        assert f'<th scope="row">{name}' in body
    assert "+1.250" in body
    assert "× 3.49" in body  # exp(1.25)
    assert "<i>" not in body
    assert "<b>" not in body
    assert "https://" not in body
    assert "differs by at most 0.004" in body
    assert "right top corner of the image is among the 3 regions" in body
    assert not re.search(r'(src|href)="(?!data:|#)', body)


def test_without_an_interval_the_page_says_why():
    found = explanation(values_with(heart=0.1), interval=False)
    text = page(found, RUN, ("s", "f"), b"", [])
    assert "No interval." in text
    assert "95 % interval</span>" not in text


def test_notes():
    values = values_with(
        heart=3.0, left_top_corner=-2.0, right_upper_zone=1.0, left_upper_zone=1.5, mediastinum=0.5
    )
    flat = np.zeros((32, 32), np.float32)
    notes = " ".join(notes_of(found_with(values), flat))
    assert "left top corner" in notes
    assert "flat grey" in notes
    assert outside_share(values, REGIONS.names) == pytest.approx(2 / 8)
    calm = found_with(values_with(heart=3.0, right_upper_zone=1.0, left_upper_zone=1.5))
    assert notes_of(calm, np.eye(32, dtype=np.float32)) == ()


def test_hospitals_page(tmp_path):
    weights = np.full((2, 13), 0.1)
    weights[0, 8] = 0.9
    about = (["north", "south"], REGIONS.names, weights)
    facts = {
        "name": "films",
        "intro": "Intro.",
        "findings": ["corner!"],
        "table": weights_table(*about),
        "dice": None,
        "notes": ["note"],
        "footer": [("a", "b")],
    }
    charts = {"weights": (weights_map(*about), "caption")}
    written = write_page(tmp_path / "r.s", "image_weights.html", facts, charts, "films")
    text = (tmp_path / "r.s.html").read_text()
    assert written == {"page": str(tmp_path / "r.s.html"), "picture": str(tmp_path / "r.s.png")}
    body = text[text.index("<header") :]
    assert "corner!" in body
    row = re.search(r"north</th>(.*?)</tr>", body).group(1)
    assert re.findall(r">([\d.]+)<", row) == ["5"] * 8 + ["43"] + ["5"] * 4 + ["2.10"]
