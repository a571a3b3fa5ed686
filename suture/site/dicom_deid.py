"""De-identify DICOM images after the standard's basic application level confidentiality profile (PS3.15 E.2, Table E.1-1).

The profile names what must go; here it is turned round: what is in `KEPT` stays, in the form said there, and **everything
else goes**, known to the standard or not: private elements, overlays, curves, comments, every sequence but the two lookup
tables. So an attribute that a later edition of the table adds, or that a vendor invents, is gone as well.

| action of Table E.1-1 | here |
|---|---|
| X remove | every element that is not listed below |
| Z empty or dummy | `EMPTIED`: elements an image must have, empty; patient's identifier and name become a code |
| U replace identifiers | `REPLACED`: each by 2.25.<128 bits of a keyed hash>, the same for the same original |
| C clean | coded texts stay only where they are a term of `TERMS` |
| K keep | `KEPT`: what is needed to show the pixels |

Dates and times are removed, and (0028,0303) says so. (0012,0062), (0012,0063) and (0012,0064) say what was done. Pixels are
decoded and written without compression: compressed streams can carry comments, and unused high bits can carry overlays.
What is written into the pixels themselves stays: see `burnt_in`.

The code of a patient is a keyed hash of the identifier: whoever holds the site's secret can make it again, nobody else.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import numpy as np

from suture import __version__
from suture.site.burnt_in import has_text
from suture.site.images import BrokenImage, described, grey_of, library, quiet, read_stored

KEPT = (
    "SamplesPerPixel", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "PixelAspectRatio", "PixelSpacing", "ImagerPixelSpacing", "PixelPaddingValue",
    "WindowCenter", "WindowWidth", "RescaleIntercept", "RescaleSlope", "PixelIntensityRelationshipSign",
)  # fmt: skip
"""Numbers that are needed to show the pixels and tell of no person; anything in them that is not a number is dropped."""


def _terms(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


TERMS: dict[str, frozenset[str]] = {
    "Modality": _terms("CR, DX, DR, RG, RF, XA, MG, PX, IO, CT, MR, PT, NM, US, OT, SC"),
    "ImageType": _terms("ORIGINAL, DERIVED, PRIMARY, SECONDARY"),
    "PhotometricInterpretation": _terms("MONOCHROME1, MONOCHROME2"),
    "PresentationIntentType": _terms("FOR PRESENTATION, FOR PROCESSING"),
    "ConversionType": _terms("DV, DI, DF, WSD, SD, SI, DRW, SYN"),
    "BodyPartExamined": _terms(
        "ABDOMEN, ANKLE, ARM, BREAST, CHEST, CSPINE, ELBOW, EXTREMITY, FINGER, FOOT, HAND, HEAD, HIP, KNEE, LEG, LSPINE, "
        "NECK, PELVIS, RIB, SHOULDER, SKULL, SPINE, TSPINE, WRIST"
    ),
    "ViewPosition": _terms("AP, PA, LL, RL, RLD, LLD, RLO, LLO"),
    "Laterality": _terms("L, R, U, B"),
    "ImageLaterality": _terms("L, R, U, B"),
    "PatientOrientation": _terms("A, P, L, R, H, F, AL, AR, PL, PR, AH, AF, PH, PF, LH, LF, RH, RF"),
    "PresentationLUTShape": _terms("IDENTITY, INVERSE"),
    "PixelIntensityRelationship": _terms("LIN, LOG"),
    "RescaleType": _terms("US, HU, OD"),
    "VOILUTFunction": _terms("LINEAR, LINEAR_EXACT, SIGMOID"),
    "LossyImageCompression": _terms("00, 01"),
    "LossyImageCompressionMethod": _terms("ISO_10918_1, ISO_14495_1, ISO_15444_1, ISO_13818_2"),
    "BurnedInAnnotation": _terms("YES, NO"),
}
"""Coded texts: kept where they are one of these, dropped otherwise (a technician may have typed a name)."""
TABLES = ("ModalityLUTSequence", "VOILUTSequence")
"""Lookup tables: rebuilt from their numbers alone, without their explanations."""
REPLACED = ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")
CODED = ("PatientID", "PatientName")
EMPTIED = (
    "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber", "ReferringPhysicianName", "StudyID",
)  # fmt: skip
"""Elements that every image must have; the profile asks for them to be empty."""
METHOD = f"Suture {__version__}: PS3.15 E.2 basic profile, by a list of what stays"


def code_of(secret: bytes, kind: str, value: str) -> bytes:
    """16 bytes that stand for a value, under the site's secret.

    >>> code_of(b"k", "uid", "1.2.3") == code_of(b"k", "uid", "1.2.3") != code_of(b"l", "uid", "1.2.3")
    True
    """
    return hmac.new(secret, f"suture dicom {kind}:{value}".encode(), hashlib.sha256).digest()[:16]


def new_uid(secret: bytes, uid: str) -> str:
    """The identifier that replaces another: under 2.25, as PS3.5 B.2 gives to random ones.

    >>> new_uid(b"k", "1.2.3").startswith("2.25.") and len(new_uid(b"k", "1.2.3")) <= 64
    True
    """
    return f"2.25.{int.from_bytes(code_of(secret, 'uid', uid))}"


def patient_code(secret: bytes, header: Any) -> str:
    """What stands for the patient of a file: the same in every copy made under the same secret."""
    patient = f"{header.get('PatientID', '')}\0{header.get('IssuerOfPatientID', '')}"
    return code_of(secret, "patient", patient).hex()


def deidentify(path: Path, secret: bytes) -> tuple[Any, dict[str, Any]]:
    """A new dataset with what may stay, and a report without values; `BrokenImage` where the file is no radiograph."""
    pydicom = library("pydicom", "de-identifying DICOM files")
    with quiet(), described():
        old, stored = read_stored(path)
        new = pydicom.Dataset()
        _fill(pydicom, new, old, secret)
        new.BitsAllocated = 8 * stored.dtype.itemsize
        new.PixelData = stored.astype(stored.dtype.newbyteorder("<")).tobytes() + b"\0" * (stored.nbytes % 2)
        new["PixelData"].VR = "OW" if new.BitsAllocated > 8 else "OB"
        new.file_meta = _meta(pydicom, new)
        text_found = has_text(grey_of(old, stored))
    report = {
        "elements": len(old),
        "private": sum(bool(tag.is_private) for tag in old.keys()),  # noqa: SIM118 (a dataset iterates over elements)
        "kept": sorted(str(element.keyword) for element in new if element.keyword in (*KEPT, *TERMS, *TABLES)),
        "burnt_in": str(new.get("BurnedInAnnotation", "")),
        "text_found": text_found,
    }
    return new, report


def _fill(pydicom: Any, new: Any, old: Any, secret: bytes) -> None:
    if str(old.get("SOPClassUID", "")) == "" or str(old.get("SOPInstanceUID", "")) == "":
        raise BrokenImage("has no SOP class or no SOP instance identifier")
    # A class of a vendor's own could tell whose machine it is; what is left of such a file is a secondary capture.
    known = pydicom.uid.UID_dictionary.get(str(old.SOPClassUID), ("", ""))[1] == "SOP Class"
    new.SOPClassUID = str(old.SOPClassUID) if known else pydicom.uid.SecondaryCaptureImageStorage
    for name in KEPT:
        value = old.get(name)
        if value is not None and _numeric(value):
            setattr(new, name, value)
    for name, terms in TERMS.items():
        value = old.get(name)
        given = [value] if isinstance(value, str) else list(value or ())
        known = [str(one).strip().upper() for one in given if str(one).strip().upper() in terms]
        if known:
            setattr(new, name, known if len(known) > 1 else known[0])
    for name in TABLES:
        if old.get(name):
            table = pydicom.Dataset()
            table.LUTDescriptor, table.LUTData = old.get(name)[0].LUTDescriptor, old.get(name)[0].LUTData
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


def _numeric(value: Any) -> bool:
    """Whether an element holds numbers and nothing else.

    >>> _numeric("2.5"), _numeric([1, "2"]), _numeric("Smith"), _numeric("")
    (True, True, False, False)
    """
    try:
        return all(np.isfinite(float(one)) for one in (value if isinstance(value, list | tuple) else [value]))
    except (TypeError, ValueError):
        return not isinstance(value, str | bytes) and hasattr(value, "__iter__") and all(_numeric(one) for one in value)


def _meta(pydicom: Any, new: Any) -> Any:
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = new.SOPClassUID, new.SOPInstanceUID
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    return meta


def write(dataset: Any, path: Path) -> None:
    """Save as a DICOM file with an empty preamble."""
    dataset.preamble = b"\0" * 128
    with quiet():
        dataset.save_as(path, enforce_file_format=True)
