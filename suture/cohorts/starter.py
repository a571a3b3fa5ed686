"""What ``suture init`` writes: an example study, and example hospitals as files a user can open.

With ``--images``: generated hospitals with a table and a folder of real DICOM and PNG files each, the
path that a user's own images will take, with the variety that they have: two polarities, 8, 12 and
16 bits, a window, a compressed file, headers full of (invented) identifiers.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from suture import cohorts
from suture.cohorts import Cohort, Columns
from suture.errors import RunError, StudyError
from suture.methods.registry import STARTER
from suture.schema.table import Image
from suture.site.images import library
from suture.study import Study

THRESHOLD = 0.9  # of the sites in a masked sum
SIDE, SIZE = 128, 32  # pixels of a side in the image files, and in the study
Kind = Literal["dicom", "png", "dicom-inverted", "png-16"]
KINDS: tuple[Kind, ...] = ("dicom", "png", "dicom-inverted", "png-16")
"""How each of the four imaging hospitals stores its images."""


def round_size(patients: int, holdout: float) -> int:
    """A number of training patients as a person would declare it: two figures, the rest zeros.

    >>> round_size(13_130, 0.2), round_size(100, 0.2), round_size(3, 0.2)
    (11000, 80, 2)
    """
    expected = patients * (1 - holdout)
    return max(1, int(float(f"{expected:.1e}")))


def _sites(cohort: Cohort, file: str) -> list[dict[str, str | int]]:
    """The declared hospitals of a study file; ``file`` is where a hospital's table is."""
    found: list[dict[str, str | int]] = []
    for site in cohort.sites:
        patients = round_size(len(np.unique(site.table["patient_id"])), 0.2)
        place = {"name": site.name, "data": file.format(site.name)}
        found.append({**place, "region": site.region, "patients": patients})
    return found


def _free(targets: Sequence[Path]) -> None:
    for path in targets:
        if path.exists():
            raise RunError(f"{path} exists already; choose another folder")


def write_starter(folder: Path, *, files: bool, patients: int) -> list[Path]:
    """Write ``study.toml`` and, with ``files``, one CSV per hospital. Returns the paths."""
    text = Path(__file__).with_name("starter.toml").read_text("utf-8")
    study = Template(text).substitute(lead=STARTER["lead"], threshold=THRESHOLD)
    tables: dict[Path, Columns] = {}
    if files:
        cohort = cohorts.load("cardio", 42, patients=patients)
        tables = {folder / f"{site.name}.csv": site.table for site in cohort.sites}
        study = Study(
            name="cardio-files",
            outcome=cohort.outcome,
            sites=_sites(cohort, "{}.csv"),
            schema=cohort.schema,
            method={"name": STARTER["lead"]},
            privacy={"unit": "patient", "epsilon": 8.0},
            protection={"sum": "masked", "threshold": THRESHOLD},
        ).to_toml()
    targets = [folder / "study.toml", *tables]
    _free(targets)
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in tables.items():
        rows = np.column_stack([np.asarray(column).astype(str) for column in table.values()])
        text = "\n".join([",".join(table), *(",".join(row) for row in rows.tolist())])
        path.write_text(text + "\n", encoding="utf-8")
    targets[0].write_text(study, encoding="utf-8")
    return targets


def write_imaging_starter(folder: Path, images: int) -> list[Path]:
    """Write ``study.toml`` and four hospitals of ``images`` radiographs each. Returns the paths."""
    if not 16 <= images <= 5000:
        raise StudyError(f"--images: expected 16 to 5,000 radiographs per hospital, found {images}")
    cohort = cohorts.load("radiographs", 42, hospitals=len(KINDS), images=images, size=SIDE)
    tables = [folder / site.name / "patients.csv" for site in cohort.sites]
    targets = [folder / "study.toml", *tables]
    _free(targets)
    image = {"image": Image(size=SIZE, label="Chest radiograph")}
    study = Study(
        name="radiographs-files",
        outcome=cohort.outcome,
        sites=[
            {key: value for key, value in site.items() if key != "region"}
            for site in _sites(cohort, "{}/patients.csv")
        ],
        schema=cohort.schema.model_copy(update={"features": image}),
        images={"size": SIZE, "folder": "images"},
        model={"kind": "scattering"},
        method={"name": STARTER["images"]},
        privacy={"unit": "patient", "epsilon": 8.0},
    )
    columns = ("patient_id", "sex", "age_group", "ethnicity", cohort.outcome)
    for kind, site, table in zip(KINDS, cohort.sites, tables, strict=True):
        pictures = table.parent / "images"
        pictures.mkdir(parents=True)
        suffix = ".dcm" if kind.startswith("dicom") else ".png"
        names = [f"{i + 1:04d}{suffix}" for i in range(images)]
        for i, name in enumerate(names):
            patient = str(site.table["patient_id"][i])
            write_radiograph(pictures / name, site.table["image"][i], kind, patient, i)
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("image", *columns))
            values = (site.table[column].tolist() for column in columns)
            writer.writerows(zip(names, *values, strict=True))
    targets[0].write_text(study.to_toml(), encoding="utf-8")
    return targets


def write_radiograph(
    path: Path, picture: NDArray[np.uint8], kind: Kind, patient: str, number: int
) -> None:
    """Write one file of a hospital's archive."""
    if kind.startswith("dicom"):
        made = _dicom(picture, kind == "dicom-inverted", patient, number)
        made.save_as(path, enforce_file_format=True)
        return
    stored = picture if kind == "png" else picture.astype(np.uint16) * np.uint16(257)
    library("PIL.Image", "writing PNG files").fromarray(stored).save(path)


def _dicom(picture: NDArray[np.uint8], inverted: bool, patient: str, number: int) -> Any:
    """A digital radiograph with an invented person's header; an inverted one is compressed."""
    pydicom = library("pydicom", "writing DICOM files")
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.SOPClassUID = pydicom.uid.DigitalXRayImageStorageForPresentation
    # of our own making, so that every run writes the same files
    uid = f"2.25.1{int(patient):09d}{number:05d}"
    file.SOPInstanceUID, file.SeriesInstanceUID = f"{uid}1", f"{uid}2"
    file.StudyInstanceUID = f"{uid}3"
    file.PatientName, file.PatientID = f"Example^Patient {patient}", patient
    file.PatientBirthDate, file.StudyDate, file.StudyTime = "19570312", "20240229", "141500"
    file.InstitutionName, file.ReferringPhysicianName = "Example Hospital", "Example^Doctor"
    file.Modality, file.BodyPartExamined, file.ViewPosition = "DX", "CHEST", "PA"
    file.ImageType, file.BurnedInAnnotation = ["ORIGINAL", "PRIMARY"], "NO"
    file.Rows, file.Columns = picture.shape
    file.SamplesPerPixel, file.BitsAllocated, file.BitsStored, file.HighBit = 1, 16, 12, 11
    file.PixelRepresentation = 0
    stored = picture.astype(np.uint16) * np.uint16(16)
    file.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    file.PixelData = (np.uint16(4080) - stored if inverted else stored).astype("<u2").tobytes()
    file["PixelData"].VR = "OW"
    file.WindowCenter, file.WindowWidth = "2040.5", "4081"
    if inverted:
        file.compress(pydicom.uid.RLELossless, generate_instance_uid=False)
    return file
