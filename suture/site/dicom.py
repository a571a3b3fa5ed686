"""DICOM files that a site writes: de-identified copies (`suture deid dicom`), and captures of drawn
pictures (`suture explain`).

*Copies* follow the standard's basic application level confidentiality profile (PS3.15 E.2, Table
E.1-1). The profile names what must go; here it is turned round: what is in `KEPT` stays, in the
form said there, and **everything else goes**, known to the standard or not: private elements,
overlays, curves, comments, every sequence but the two lookup tables. So an attribute that a later edition of
the table adds, or that a vendor invents, is gone as well.

| action of Table E.1-1 | here |
|---|---|
| X remove | every element that is not listed below |
| Z empty or dummy | `EMPTIED`: elements an image must have, empty; patient's identifier and name become a code |
| U replace identifiers | `REPLACED`: each by 2.25.<128 bits of a keyed hash>, the same for the same original |
| C clean | coded texts stay only where they are a term of `TERMS` |
| K keep | `KEPT`: what is needed to show the pixels |

Dates and times are removed, and (0028,0303) says so. (0012,0062), (0012,0063) and (0012,0064) say
what was done. Pixels are decoded and written without compression: compressed streams can carry
comments, and unused high bits can carry overlays. The code of a patient is a keyed hash of the
identifier: whoever holds the site's secret can make it again, nobody else can.

File names often hold a patient's name or number, so each copy is named by the code of its image.
Which code was which file is written only where the site asks for it (``names``), to a table that
must stay there.

*Text burnt into the pixels* stays: no header can be cleaned of it. `has_text` warns of it, and its
silence is no proof of absence. Letters are small, thin and far brighter (or darker) than what is
around them, and stand in a line. So: the thin bright and the thin dark parts of the picture
(top-hat transforms), cut at a fixed height, in connected pieces of a letter's size; four or more
pieces of like height side by side are taken for text. A single letter, such as a side marker, is
not. `benchmarks/burnt_in_text.py` measures how often that finds text and how often it raises a
false alarm; docs/imaging.md has the rates. Handwriting, vertical text, text as faint as ribs and
text larger than a tenth of the picture are not found.

*Captures* are DICOM Secondary Captures (PS3.3 A.8.1), which a PACS files and shows like any other
image: SOP class Secondary Capture Image Storage, colour by pixel (RGB, 8 bits), uncompressed little
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

import csv
import hashlib
import hmac
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy import ndimage

from suture.errors import DataError, StudyError
from suture.privacy.software import VERSION
from suture.site import images

SIDE = 512  # pictures are looked at in this size; smaller ones in their own
HEIGHT = 0.15  # how far a stroke stands out, as a share of the full range
GLYPHS = 4  # pieces in a line that make a text


def has_text(grey: images.Floats) -> bool:
    """Whether the picture (pixels from 0 to 1) seems to have a line of text in it."""
    picture = images.square(np.asarray(grey, np.float32))
    if len(picture) > SIDE:
        picture = images.resample(picture, SIDE)
    side = len(picture)
    width = max(3, round(0.025 * side)) | 1  # wider than a stroke, narrower than a rib
    bright = picture - ndimage.grey_opening(picture, (width, width))
    dark = ndimage.grey_closing(picture, (width, width)) - picture
    return any(_lines(part > HEIGHT, side) for part in (bright, dark))


def _lines(mask: NDArray[np.bool_], side: int) -> bool:
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    if count < GLYPHS:
        return False
    boxes = ndimage.find_objects(labels)
    sizes = ndimage.sum_labels(mask, labels, np.arange(1, count + 1))
    least, most = max(4, 0.012 * side), 0.10 * side
    pieces = []  # middle row, left, right, height
    for box, size in zip(boxes, sizes, strict=True):
        tall, wide = box[0].stop - box[0].start, box[1].stop - box[1].start
        if least <= tall <= most and wide <= 1.5 * most and size >= tall:
            pieces.append(((box[0].start + box[0].stop) / 2, box[1].start, box[1].stop, tall))
    pieces.sort(key=lambda piece: piece[1])
    best = [1] * len(pieces)
    for i, (row, left, _, tall) in enumerate(pieces):
        for j in range(i):
            other, _, right, height = pieces[j]
            tallest = max(tall, height)
            alike = tallest <= 1.6 * min(tall, height) and abs(row - other) <= 0.4 * tallest
            if alike and -0.3 * tall <= left - right <= 1.5 * tallest:
                best[i] = max(best[i], best[j] + 1)
    return max(best, default=0) >= GLYPHS


KEPT = (
    "SamplesPerPixel", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "PixelAspectRatio", "PixelSpacing", "ImagerPixelSpacing", "PixelPaddingValue",
    "WindowCenter", "WindowWidth", "RescaleIntercept", "RescaleSlope", "PixelIntensityRelationshipSign",
)  # fmt: skip
"""Numbers that show the pixels and tell of no person; what is not a number is dropped."""


TERMS = {
    "Modality": "CR, DX, DR, RG, RF, XA, MG, PX, IO, CT, MR, PT, NM, US, OT, SC",
    "ImageType": "ORIGINAL, DERIVED, PRIMARY, SECONDARY",
    "PhotometricInterpretation": "MONOCHROME1, MONOCHROME2",
    "PresentationIntentType": "FOR PRESENTATION, FOR PROCESSING",
    "ConversionType": "DV, DI, DF, WSD, SD, SI, DRW, SYN",
    "BodyPartExamined": (
        "ABDOMEN, ANKLE, ARM, BREAST, CHEST, CSPINE, ELBOW, EXTREMITY, FINGER, FOOT, HAND, HEAD, "
        "HIP, KNEE, LEG, LSPINE, NECK, PELVIS, RIB, SHOULDER, SKULL, SPINE, TSPINE, WRIST"
    ),
    "ViewPosition": "AP, PA, LL, RL, RLD, LLD, RLO, LLO",
    "Laterality": "L, R, U, B",
    "ImageLaterality": "L, R, U, B",
    "PatientOrientation": "A, P, L, R, H, F, AL, AR, PL, PR, AH, AF, PH, PF, LH, LF, RH, RF",
    "PresentationLUTShape": "IDENTITY, INVERSE",
    "PixelIntensityRelationship": "LIN, LOG",
    "RescaleType": "US, HU, OD",
    "VOILUTFunction": "LINEAR, LINEAR_EXACT, SIGMOID",
    "LossyImageCompression": "00, 01",
    "LossyImageCompressionMethod": "ISO_10918_1, ISO_14495_1, ISO_15444_1, ISO_13818_2",
    "BurnedInAnnotation": "YES, NO",
}
"""Coded texts that may stay; others are dropped (a technician may have typed a name)."""
TABLES = ("ModalityLUTSequence", "VOILUTSequence")
"""Lookup tables: rebuilt from their numbers alone, without their explanations."""
REPLACED = ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")
CODED = ("PatientID", "PatientName")
EMPTIED = (
    "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName", "StudyID",
)  # fmt: skip
"""Elements that every image must have; the profile asks for them to be empty."""
METHOD = f"Suture {VERSION}: PS3.15 E.2 basic profile, by a list of what stays"


def code_of(secret: bytes, kind: str, value: str) -> bytes:
    """16 bytes that stand for a value, under the site's secret."""
    return hmac.new(secret, f"suture dicom {kind}:{value}".encode(), hashlib.sha256).digest()[:16]


def new_uid(secret: bytes, uid: str) -> str:
    """The identifier that replaces another: under 2.25, as PS3.5 B.2 gives to random ones."""
    return f"2.25.{int.from_bytes(code_of(secret, 'uid', uid))}"


def patient_code(secret: bytes, header: images.Header) -> str:
    """What stands for the patient of a file: the same in every copy made under the same secret."""
    patient = f"{header.get('PatientID', '')}\0{header.get('IssuerOfPatientID', '')}"
    return code_of(secret, "patient", patient).hex()


class ImageReport(TypedDict):
    """What became of one file; holds no value but codes of the standard."""

    elements: int
    private: int
    kept: list[str]
    burnt_in: str
    text_found: bool


def deidentify(path: Path, secret: bytes) -> tuple[images.Header, ImageReport]:
    """What may stay of a radiograph, and a report without values; `BrokenImage` for other files."""
    pydicom = images.library("pydicom", "de-identifying DICOM files")
    with images.quiet(), images.as_broken("has a damaged header"):
        old, stored = images.read_stored(path)
        new = pydicom.Dataset()
        _fill(pydicom, new, old, secret)
        new.BitsAllocated = 8 * stored.dtype.itemsize
        pixels = stored.astype(stored.dtype.newbyteorder("<")).tobytes()
        new.PixelData = pixels + b"\0" * (len(pixels) % 2)
        new["PixelData"].VR = "OW" if new.BitsAllocated > 8 else "OB"
        new.file_meta = pydicom.dataset.FileMetaDataset()
        new.file_meta.MediaStorageSOPClassUID = new.SOPClassUID
        new.file_meta.MediaStorageSOPInstanceUID = new.SOPInstanceUID
        new.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        text_found = has_text(images.grey_of(old, stored))
    names = (str(element.keyword) for element in new)
    return new, {
        "elements": len(old),
        "private": sum(bool(tag.is_private) for tag in old.keys()),  # noqa: SIM118 (a dataset iterates over elements)
        "kept": sorted(name for name in names if name in (*KEPT, *TERMS, *TABLES)),
        "burnt_in": str(new.get("BurnedInAnnotation", "")),
        "text_found": text_found,
    }


def _fill(pydicom: ModuleType, new: images.Header, old: images.Header, secret: bytes) -> None:
    if str(old.get("SOPClassUID", "")) == "" or str(old.get("SOPInstanceUID", "")) == "":
        raise images.BrokenImage("has no SOP class or no SOP instance identifier")
    # A vendor's own class could tell whose machine it is: what is left is a secondary capture.
    known = pydicom.uid.UID_dictionary.get(str(old.SOPClassUID), ("", ""))[1] == "SOP Class"
    new.SOPClassUID = str(old.SOPClassUID) if known else pydicom.uid.SecondaryCaptureImageStorage
    for name in KEPT:
        value = old.get(name)
        if value is not None and _numeric(value):
            setattr(new, name, value)
    for name, terms in TERMS.items():
        value = old.get(name)
        given = [value] if isinstance(value, str) else list(value or ())
        listed = terms.split(", ")
        known = [str(one).strip().upper() for one in given if str(one).strip().upper() in listed]
        if known:
            setattr(new, name, known if len(known) > 1 else known[0])
    for name in TABLES:
        if old.get(name):
            table, given = pydicom.Dataset(), old.get(name)[0]
            table.LUTDescriptor, table.LUTData = given.LUTDescriptor, given.LUTData
            if name == "ModalityLUTSequence":
                table.ModalityLUTType = "US"  # unspecified
            setattr(new, name, pydicom.Sequence([table]))
    for name in REPLACED:
        if str(old.get(name) or ""):
            setattr(new, name, new_uid(secret, str(old.get(name))))
    for name in CODED:
        setattr(new, name, patient_code(secret, old))
    for name in EMPTIED:
        setattr(new, name, "")
    new.PatientIdentityRemoved, new.DeidentificationMethod = "YES", METHOD
    new.LongitudinalTemporalInformationModified = "REMOVED"
    code = pydicom.Dataset()
    code.CodeValue, code.CodingSchemeDesignator = "113100", "DCM"
    code.CodeMeaning = "Basic Application Confidentiality Profile"
    new.DeidentificationMethodCodeSequence = pydicom.Sequence([code])


def _numeric(value: object) -> bool:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return all(_numeric(one) for one in value)
    try:
        return bool(np.isfinite(float(str(value))))
    except ValueError:
        return False


def write(dataset: images.Header, path: Path) -> None:
    """Save as a DICOM file with an empty preamble."""
    dataset.preamble = b"\0" * 128
    with images.quiet():
        dataset.save_as(path, enforce_file_format=True)


SHOWN = 10


class FolderReport(TypedDict):
    """What became of a folder of files."""

    out: str
    files: int
    written: int
    skipped: list[dict[str, str]]
    elements_read: int
    private_elements_removed: int
    kept: list[str]
    burnt_in_annotation: dict[str, int]
    text_found: list[str]  # copies that seem to have text in the pixels
    text_stated: list[str]  # copies whose header says so


def deidentify_folder(
    source: Path,
    out: Path,
    *,
    secret: bytes,
    broken: str = "refuse",
    keep_names: bool = False,
    names: Path | None = None,
) -> FolderReport:
    """Write copies of all radiographs, or none; with ``broken = "skip"``, of all usable ones."""
    if broken not in ("refuse", "skip"):
        raise StudyError(f'--broken must be "refuse" or "skip", found {broken!r}')
    if not source.exists():
        raise DataError(f"{source} does not exist; give a DICOM file or a folder of them")
    for target in (out, names):
        if target is not None and target.exists():
            raise StudyError(f"{target} exists already; choose another name")
    if out.resolve().is_relative_to(source.resolve()) and source.is_dir():
        raise StudyError(f"{out} lies inside {source}; copies belong outside of it")
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise DataError(f"{source} holds no files")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    root = source if source.is_dir() else source.parent
    try:
        reports, refused = _copies(files, root, beside, secret, keep_names)
        if refused and (broken == "refuse" or not reports):
            shown = "; ".join(f"{name} ({reason})" for name, reason in refused[:SHOWN])
            more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
            raise DataError(
                f"{len(refused)} of {len(files)} files under {root} cannot be de-identified: "
                f"{shown}{more}. Nothing was written; remove them, or leave them out with --broken "
                "skip"
            )
        if names is not None:
            _write_names(names, [(name, copy) for name, copy, _ in reports])
        (beside if source.is_dir() else beside / reports[0][1]).rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    found = [report for _, _, report in reports]
    stated = [report["burnt_in"] or "not stated" for report in found]
    words = [word for word in ("YES", "NO", "not stated") if word in stated]
    return {
        "out": str(out),
        "files": len(files),
        "written": len(reports),
        "skipped": [{"file": name, "reason": reason} for name, reason in refused],
        "elements_read": sum(report["elements"] for report in found),
        "private_elements_removed": sum(report["private"] for report in found),
        "kept": sorted({name for report in found for name in report["kept"]}),
        "burnt_in_annotation": {word: stated.count(word) for word in words},
        "text_found": [copy for _, copy, report in reports if report["text_found"]],
        "text_stated": [copy for _, copy, report in reports if report["burnt_in"] == "YES"],
    }


def _copies(
    files: Sequence[Path], root: Path, beside: Path, secret: bytes, keep_names: bool
) -> tuple[list[tuple[str, str, ImageReport]], list[tuple[str, str]]]:
    """Each file's name, its copy's and its report; and why other files cannot be used."""
    reports, refused = [], []
    for path in files:
        name = str(path.relative_to(root))
        try:
            new, report = deidentify(path, secret)
        except images.BrokenImage as error:
            refused.append((name, str(error)))
            continue
        copy = name if keep_names else f"{str(new.SOPInstanceUID).removeprefix('2.25.')}.dcm"
        if (beside / copy).exists():
            raise DataError(
                f"{name} and another file are copies of one image (the same SOP instance); remove "
                "one of them"
            )
        (beside / copy).parent.mkdir(parents=True, exist_ok=True)
        write(new, beside / copy)
        reports.append((name, copy, report))
    return reports, refused


def _write_names(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """The table that leads back: readable by the site's user only."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "copy"), *pairs])


def print_dicom(found: FolderReport) -> None:
    """What became of a folder of DICOM files, and which copies a person must look at."""
    console = Console(highlight=False)
    console.print(
        f"{found['written']:,} of {found['files']:,} files written to {found['out']}; "
        f"{found['elements_read']:,} header elements read, {found['private_elements_removed']:,} "
        f"of them private; {len(found['kept'])} kinds kept"
    )
    console.print(f"kept: {', '.join(found['kept'])}")
    for one in found["skipped"]:
        console.print(f"skipped: {one['file']} ({one['reason']})")
    stated = ", ".join(f"{word} {count:,}" for word, count in found["burnt_in_annotation"].items())
    console.print(f"burnt-in annotation by the header (0028,0301): {stated}")
    look = sorted({*found["text_found"], *found["text_stated"]})
    if look:
        console.print(
            f"LOOK AT THESE {len(look):,}: text seems to be burnt into the pixels, which no header "
            "can be cleaned of:"
        )
        for name in look:
            console.print(f"  {name}")
    console.print(
        "The search for text misses some (docs/imaging.md says how many): look at images before "
        "you give them away."
    )


# --- Secondary Captures -----------------------------------------------------------------------------------------------

CLASS = "1.2.840.10008.5.1.4.1.1.7"  # Secondary Capture Image Storage
LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
STUDY = ("StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber")
ALSO = ("IssuerOfPatientID", "OtherPatientIDs", "PatientAge", "StudyDescription")
"""Copied where the source has them; the ones above are always written."""
WHAT = "reading or writing DICOM files"


def patient_of(path: Path) -> str | None:
    """The patient's identifier in a DICOM file, to compare with erased and withdrawn patients."""
    source = source_of(path)
    return str(source.get("PatientID") or "") or None if source is not None else None


def source_of(path: Path) -> images.Header | None:
    """The header of a DICOM file; None where the file is of another kind."""
    with path.open("rb") as file:
        if file.read(132)[128:] != b"DICM":
            return None
    pydicom = images.library("pydicom", WHAT)
    try:
        return pydicom.dcmread(path, stop_before_pixels=True)
    except Exception as error:  # its messages quote header values
        kind = type(error).__name__
        raise DataError(f"{path.name}: the DICOM header cannot be read ({kind})") from None


def write_capture(
    raster: NDArray[np.uint8],
    path: Path,
    *,
    source: images.Header | None,
    identified: bool,
    series: str,
    comment: str,
    secret: bytes | None = None,
) -> None:
    """Write rows x columns x 3 as a capture; ``comment`` and ``series`` must not name a patient."""
    if identified and (
        source is None or not source.get("StudyInstanceUID") or not source.get("PatientID")
    ):
        raise DataError(
            "--identify files the capture beside the source, and needs a DICOM file with a patient "
            "and a study; leave it out"
        )
    pydicom = images.library("pydicom", WHAT)
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


def _fill_patient(made: images.Header, source: images.Header | None, pydicom: ModuleType) -> None:
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


def _fill_series(made: images.Header, series: str, pydicom: ModuleType) -> None:
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


def _reference(pydicom: ModuleType, sop_class: str, instance: str) -> images.Header:
    reference = pydicom.dataset.Dataset()
    reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = sop_class, instance
    purpose = pydicom.dataset.Dataset()
    purpose.CodeValue, purpose.CodingSchemeDesignator = "121322", "DCM"
    purpose.CodeMeaning = "Source image for image processing operation"
    reference.PurposeOfReferenceCodeSequence = [purpose]
    return reference


def _fill_pixels(made: images.Header, raster: NDArray[np.uint8]) -> None:
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
