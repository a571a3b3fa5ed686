"""A picture as a DICOM Secondary Capture (PS3.3 A.8.1), which a PACS files and shows like any other
image.

SOP class Secondary Capture Image Storage, colour by pixel (RGB, 8 bits), uncompressed little
endian: every archive reads that. Type 1 attributes of the mandatory modules (patient, study,
series, SC equipment, image, pixel, SOP common) are filled, type 2 ones are there though empty.

Whose picture it is: by default nobody's. The patient module is empty, the study is new, the file
says that identity was removed, and the source image is not referred to, because its UID leads to
the patient. With the site's ``secret`` the codes are those that `suture deid dicom` gives under the
same secret, so that the capture is filed beside the source's de-identified copy and refers to it. A
hospital that wants it beside the source itself, in its own PACS, asks for it (``identified=True``,
`suture explain --identify`): then patient and study are copied from the source file, and the source
is referred to by its UIDs. Such a file is a patient's record and must be treated as one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError
from suture.privacy.software import VERSION
from suture.site.deid.dicom import new_uid, patient_code
from suture.site.images.files import Header, library

CLASS = "1.2.840.10008.5.1.4.1.1.7"
"""Secondary Capture Image Storage."""
LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber")
ALSO = ("IssuerOfPatientID", "OtherPatientIDs", "PatientAge", "StudyDescription")
"""Copied where the source has them; the ones above are always written."""
WHAT = "reading or writing DICOM files"


def patient_of(path: Path) -> str | None:
    """The patient's identifier in a DICOM file, for the site's own lists of erased and withdrawn
    patients."""
    source = source_of(path)
    return str(source.get("PatientID") or "") or None if source is not None else None


def source_of(path: Path) -> Header | None:
    """The header of a DICOM file; None where the file is of another kind."""
    with path.open("rb") as file:
        if file.read(132)[128:] != b"DICM":
            return None
    pydicom = library("pydicom", WHAT)
    try:
        return pydicom.dcmread(path, stop_before_pixels=True)
    except Exception as error:  # its messages quote header values
        kind = type(error).__name__
        raise DataError(f"{path.name}: the DICOM header cannot be read ({kind})") from None


def write_capture(
    raster: NDArray[np.uint8],
    path: Path,
    *,
    source: Header | None,
    identified: bool,
    series: str,
    comment: str,
    secret: bytes | None = None,
) -> None:
    """Write rows x columns x 3 as a Secondary Capture; ``comment`` and ``series`` must not name a
    patient."""
    if identified and (
        source is None or not source.get("StudyInstanceUID") or not source.get("PatientID")
    ):
        raise DataError(
            "--identify files the capture beside the source, and needs a DICOM file with a patient "
            "and a study; leave it out"
        )
    pydicom = library("pydicom", WHAT)
    made = pydicom.dataset.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.SpecificCharacterSet = "ISO_IR 192"
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = CLASS
    made.SOPInstanceUID = pydicom.uid.generate_uid(None)
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    made.file_meta.TransferSyntaxUID = LITTLE_ENDIAN
    _fill_patient(made, source if identified else None, pydicom)
    _fill_series(made, series, pydicom)
    made.ImageType = ["DERIVED", "SECONDARY"]
    made.InstanceNumber = "1"
    made.PatientOrientation = ""
    made.DerivationDescription = (
        "Region values of a risk model drawn over the image; not for diagnosis"
    )
    made.ImageComments = comment
    made.BurnedInAnnotation = "NO"  # no patient and no date is written into the picture
    made.LossyImageCompression = "00"
    if source is not None and identified:
        made.SourceImageSequence = [_reference(pydicom, source.SOPClassUID, source.SOPInstanceUID)]
    elif source is not None and secret is not None:
        made.PatientID = made.PatientName = patient_code(secret, source)
        made.StudyInstanceUID = new_uid(secret, str(source.get("StudyInstanceUID", "")))
        # A vendor's own class could tell whose machine it is.
        known = str(source.SOPClassUID).startswith("1.2.840.10008.")
        copy = new_uid(secret, str(source.SOPInstanceUID))
        shown = source.SOPClassUID if known else CLASS
        made.SourceImageSequence = [_reference(pydicom, shown, copy)]
    _fill_pixels(made, raster)
    part = path.with_name(path.name + ".part")
    pydicom.dcmwrite(part, made, enforce_file_format=True)
    part.replace(path)


def _fill_patient(made: Header, source: Header | None, pydicom: ModuleType) -> None:
    """Patient and study: the source's, or nobody's."""
    for name in (*PATIENT, *STUDY):
        setattr(made, name, source.get(name, "") if source is not None else "")
    if source is None:
        made.StudyInstanceUID = pydicom.uid.generate_uid(None)
        made.PatientIdentityRemoved = "YES"
        made.DeidentificationMethod = "Suture: patient and study empty or coded, new UIDs"
        return
    made.StudyInstanceUID = source.StudyInstanceUID
    for name in ALSO:
        if name in source:
            setattr(made, name, source.get(name))


def _fill_series(made: Header, series: str, pydicom: ModuleType) -> None:
    now = datetime.now(UTC)
    day, time = now.strftime("%Y%m%d"), now.strftime("%H%M%S")
    made.SeriesInstanceUID = pydicom.uid.generate_uid(None)
    made.Modality = "OT"
    made.SeriesNumber = "9001"
    made.SeriesDescription = series[:64]
    made.ConversionType = "WSD"
    made.Manufacturer = made.SecondaryCaptureDeviceManufacturer = "Suture"
    made.SoftwareVersions = made.SecondaryCaptureDeviceSoftwareVersions = VERSION
    made.InstanceCreationDate = made.ContentDate = made.DateOfSecondaryCapture = day
    made.InstanceCreationTime = made.ContentTime = made.TimeOfSecondaryCapture = time
    made.TimezoneOffsetFromUTC = "+0000"


def _reference(pydicom: ModuleType, sop_class: str, instance: str) -> Header:
    reference = pydicom.dataset.Dataset()
    reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = sop_class, instance
    purpose = pydicom.dataset.Dataset()
    purpose.CodeValue, purpose.CodingSchemeDesignator = "121322", "DCM"
    purpose.CodeMeaning = "Source image for image processing operation"
    reference.PurposeOfReferenceCodeSequence = [purpose]
    return reference


def _fill_pixels(made: Header, raster: NDArray[np.uint8]) -> None:
    rows, columns, colours = raster.shape
    if colours != 3 or raster.dtype != np.uint8:
        shape = f"{raster.shape} of {raster.dtype}"
        raise DataError(f"expected rows x columns x 3 bytes, found {shape}")
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PlanarConfiguration = 3, "RGB", 0
    made.Rows, made.Columns = rows, columns
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 8, 8, 7, 0
    data = np.ascontiguousarray(raster).tobytes()
    made.PixelData = data + b"\0" * (len(data) % 2)  # a value has an even length
    made["PixelData"].VR = "OB"
