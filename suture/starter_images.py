"""What ``suture init --images`` writes: generated hospitals with folders of real DICOM and PNG files, and a table each.

The path that a user's own images will take, with the variety that they have: two polarities, 8, 12 and 16 bits, a
window, a compressed file, headers full of (invented) identifiers.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from suture import cohorts
from suture.errors import RunError, StudyError
from suture.site.images import library
from suture.site.schema import Image
from suture.study import Study

SIDE, SIZE = 128, 32
"""Pixels of a side in the files, and in the study."""
Kind = Literal["dicom", "png", "dicom-inverted", "png-16"]
KINDS: tuple[Kind, ...] = ("dicom", "png", "dicom-inverted", "png-16")
"""How each of the four hospitals stores its images."""


def write_imaging_starter(folder: Path, images: int) -> list[Path]:
    """Write ``study.toml`` and four hospitals of ``images`` radiographs each; refuses to overwrite. Returns the paths."""
    if not 16 <= images <= 5000:
        raise StudyError(f"--images: expected 16 to 5,000 radiographs a hospital, found {images}")
    cohort = cohorts.load("radiographs", 42, hospitals=len(KINDS), images=images, size=SIDE)
    targets = [folder / "study.toml", *(folder / site.name / "patients.csv" for site in cohort.sites)]
    there = [path for path in targets if path.exists()]
    if there:
        raise RunError(f"{there[0]} exists already; choose another folder")
    study = Study(
        name="radiographs-files",
        outcome=cohort.outcome,
        sites=[{"name": site.name, "data": f"{site.name}/patients.csv"} for site in cohort.sites],
        schema=cohort.schema.model_copy(update={"features": {"image": Image(size=SIZE, label="Chest radiograph")}}),
        images={"size": SIZE, "folder": "images"},
        model={"kind": "residual"},
        method={"name": "fedavg", "rounds": 5, "local_epochs": 1, "batch": 16, "rate": 0.1},
        privacy={"unit": "patient", "epsilon": 8.0},
    )
    for kind, site, table in zip(KINDS, cohort.sites, targets[1:], strict=True):
        (table.parent / "images").mkdir(parents=True)
        suffix = ".dcm" if kind.startswith("dicom") else ".png"
        names = [f"{i + 1:04d}{suffix}" for i in range(images)]
        for i, name in enumerate(names):
            write_radiograph(
                table.parent / "images" / name, site.table["image"][i], kind, f"{site.table['patient_id'][i]}", i
            )
        columns = ("patient_id", "sex", "age_group", "ethnicity", cohort.outcome)
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("image", *columns))
            writer.writerows(zip(names, *(site.table[column].tolist() for column in columns), strict=True))
    targets[0].write_text(study.to_toml(), encoding="utf-8")
    return targets


def write_radiograph(path: Path, picture: NDArray[np.uint8], kind: Kind, patient: str, number: int) -> None:
    """One file of a hospital's archive."""
    if kind == "png":
        library("PIL.Image", "writing PNG files").fromarray(picture).save(path)
    elif kind == "png-16":
        library("PIL.Image", "writing PNG files").fromarray(picture.astype(np.uint16) * np.uint16(257)).save(path)
    else:
        _dicom(picture, kind == "dicom-inverted", patient, number).save_as(path, enforce_file_format=True)


def _dicom(picture: NDArray[np.uint8], inverted: bool, patient: str, number: int) -> Any:
    """A digital radiograph of 12 bits with an invented person's header; the inverted one is compressed (RLE)."""
    pydicom = library("pydicom", "writing DICOM files")
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.SOPClassUID = pydicom.uid.DigitalXRayImageStorageForPresentation
    uid = f"2.25.1{int(patient):09d}{number:05d}"  # of our own making, so that every run writes the same files
    file.SOPInstanceUID, file.SeriesInstanceUID, file.StudyInstanceUID = f"{uid}1", f"{uid}2", f"{uid}3"
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
