"""De-identified headers, tag by tag: what stays is listed, everything else is gone."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from suture.errors import DataError, StudyError
from suture.site import dicom
from suture.site.dicom import (
    CODED,
    EMPTIED,
    KEPT,
    REPLACED,
    TABLES,
    TERMS,
    deidentify,
    deidentify_folder,
    has_text,
    write,
)
from suture.site.images import read_image

pydicom = pytest.importorskip("pydicom", reason="pip install 'suture[imaging]'")
SECRET = b"k" * 32
ADDED = {
    "SOPClassUID",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
    "DeidentificationMethodCodeSequence",
    "LongitudinalTemporalInformationModified",
    "PixelData",
}
NAMED = "Zyx^Identifying"


def everything(
    path: Path, patient: str = "MRN-4711", uid: str = "1.2.3.4", full: bool = False
) -> Path:
    """A file with a value in every element of the standard's dictionary that can hold a text, a
    date or an identifier.

    With ``full`` in every sequence and every element of bytes too.
    """
    from pydicom.datadict import DicomDictionary
    from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian

    values = {
        "PN": NAMED, "LO": NAMED, "SH": "Zyx Ident", "ST": NAMED, "LT": NAMED, "UT": NAMED, "UC": NAMED, "CS": "ZYXIDENT",
        "AE": "ZYXIDENT", "DA": "19570312", "DT": "19570312142200", "TM": "142200", "AS": "064Y", "UI": "1.2.3.4.5",
        "IS": "4711", "UR": "http://zyx.example",
    }  # fmt: skip
    file = pydicom.Dataset()
    for tag, (kind, multiple, _, retired, keyword) in DicomDictionary.items():
        writable = keyword and not retired and kind in values and multiple in ("1", "1-n")
        if (
            writable and tag > 0x00080005
        ):  # file meta, and the character set, which must be a real one
            setattr(file, keyword, values[kind])
        elif (
            full
            and keyword
            and not retired
            and tag > 0x00080005
            and keyword not in (*TABLES, *TERMS, *KEPT, "PixelData")
        ):
            if kind == "SQ":
                inside = pydicom.Dataset()
                inside.PatientName, inside.ReferencedSOPInstanceUID = NAMED, "1.2.3.4.5"
                setattr(file, keyword, pydicom.Sequence([inside]))
            elif kind in ("OB", "UN"):
                setattr(file, keyword, NAMED.encode())
    stored = np.arange(16, dtype=np.uint16).reshape(4, 4) * 200
    file.PatientID, file.PatientName = patient, NAMED
    file.SOPInstanceUID, file.StudyInstanceUID, file.SeriesInstanceUID = uid, "1.2.3", "1.2.3.1"
    file.SOPClassUID = DigitalXRayImageStorageForPresentation
    file.Modality, file.BodyPartExamined, file.ViewPosition, file.BurnedInAnnotation = (
        "DX",
        "CHEST",
        "PA",
        "NO",
    )
    file.ImageType = ["ORIGINAL", "PRIMARY", "SMITH"]
    file.PhotometricInterpretation, file.SamplesPerPixel, file.NumberOfFrames = "MONOCHROME1", 1, 1
    file.Rows = file.Columns = 4
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.WindowCenter, file.WindowWidth, file.VOILUTFunction = "1500.5", "3001", "LINEAR"
    file.RescaleSlope, file.RescaleIntercept, file.PixelSpacing = "1", "0", ["0.15", "0.15"]
    file.PixelData = (
        stored | 0xF000
    ).tobytes()  # something hides in the bits that are not the image's
    reference = pydicom.Dataset()
    reference.ReferencedSOPInstanceUID, reference.PatientName = "1.2.3.9", NAMED
    file.ReferencedImageSequence = pydicom.Sequence([reference])
    block = file.private_block(0x0099, "VENDOR", create=True)
    block.add_new(0x01, "LO", NAMED)
    file.add_new(0x60000022, "LO", NAMED)  # an overlay's description
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.MediaStorageSOPClassUID, file.file_meta.MediaStorageSOPInstanceUID = (
        file.SOPClassUID,
        uid,
    )
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.SourceApplicationEntityTitle = "ZYXIDENT"
    file.preamble = (NAMED.encode() * 20)[:128]
    file.save_as(path, enforce_file_format=True)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The file with everything in it, and its copy as read back from disk."""
    folder = tmp_path_factory.mktemp("deid")
    old = everything(folder / "old.dcm", full=True)
    new, report = deidentify(old, SECRET)
    write(new, folder / "new.dcm")
    return pydicom.dcmread(old), pydicom.dcmread(folder / "new.dcm"), folder, report


def test_the_file_is_full_of_identifiers(pair) -> None:
    old, _, folder, report = pair
    assert len(old) > 2500
    assert report["private"] == 2  # the block's creator and its element
    assert NAMED.encode() in (folder / "old.dcm").read_bytes()


def test_nothing_but_the_list_stays(pair) -> None:
    _, new, folder, _ = pair
    allowed = {*KEPT, *TERMS, *TABLES, *REPLACED, *CODED, *EMPTIED, *ADDED}
    for element in new:
        assert element.keyword in allowed, element.tag
        assert not element.tag.is_private
    raw = (folder / "new.dcm").read_bytes()
    for text in (b"Zyx", b"ZYX", b"4711", b"1957", b"1.2.3.4", b"SMITH", b"VENDOR", b"064Y"):
        assert text not in raw, text
    assert raw[:128] == b"\0" * 128


def test_each_element_is_what_the_profile_asks(pair) -> None:
    old, new, _, _ = pair
    for name in KEPT:
        if name in old:
            assert new.get(name) == old.get(name), name
    for name in EMPTIED:  # action Z
        assert name in new
        assert str(new.get(name)) == "", name
    for name in REPLACED:  # action U
        assert new.get(name) == dicom.new_uid(SECRET, str(old.get(name)))
        assert new.get(name).is_valid
    assert new.PatientID == str(new.PatientName) != old.PatientID
    assert new.PatientIdentityRemoved == "YES"
    assert "basic profile" in new.DeidentificationMethod
    code = new.DeidentificationMethodCodeSequence[0]
    assert (code.CodeValue, code.CodingSchemeDesignator) == ("113100", "DCM")
    assert new.LongitudinalTemporalInformationModified == "REMOVED"
    assert list(new.ImageType) == [
        "ORIGINAL",
        "PRIMARY",
    ]  # a term that is not the standard's is dropped
    assert (new.Modality, new.BodyPartExamined, new.ViewPosition) == ("DX", "CHEST", "PA")
    assert new.file_meta.MediaStorageSOPInstanceUID == new.SOPInstanceUID
    assert "SourceApplicationEntityTitle" not in new.file_meta
    for element in new:
        assert element.VR not in ("DA", "TM", "DT") or element.value == ""


def test_the_picture_is_the_same_and_unused_bits_are_empty(pair) -> None:
    _, new, folder, _ = pair
    assert new.pixel_array.max() == 15 * 200
    other = np.arange(16).reshape(4, 4) * 200
    assert (new.pixel_array == other).all()
    shown = read_image(folder / "new.dcm", 4)
    assert shown[0, 0] == pytest.approx(1.0)  # MONOCHROME1: the lowest value is the brightest
    assert shown[3, 3] == pytest.approx(0.0)


def test_identifiers_are_replaced_alike_in_all_files_and_by_the_secret(tmp_path: Path) -> None:
    a, b = (
        everything(tmp_path / "a.dcm", uid="1.2.3.4"),
        everything(tmp_path / "b.dcm", uid="1.2.3.5"),
    )
    c = everything(tmp_path / "c.dcm", patient="MRN-4712", uid="1.2.3.6")
    one, two, three = (deidentify(path, SECRET)[0] for path in (a, b, c))
    assert one.StudyInstanceUID == two.StudyInstanceUID
    assert one.SOPInstanceUID != two.SOPInstanceUID
    assert one.PatientID == two.PatientID != three.PatientID
    other, _ = deidentify(a, b"l" * 32)
    assert other.PatientID != one.PatientID
    assert other.StudyInstanceUID != one.StudyInstanceUID


def test_a_folder_whole_or_not_at_all(tmp_path: Path) -> None:
    films = tmp_path / "films" / "day 1"
    films.mkdir(parents=True)
    everything(films / "Smith^John.dcm", uid="1.2.3.4")
    everything(films / "x.dcm", uid="1.2.3.5")
    names, out = tmp_path / "names.csv", tmp_path / "clean"
    found = deidentify_folder(tmp_path / "films", out, secret=SECRET, names=names)
    assert found["written"] == 2
    assert found["burnt_in_annotation"] == {"NO": 2}
    copies = sorted(path.name for path in out.iterdir())
    assert "Smith" not in "".join(copies)
    with names.open(encoding="utf-8") as file:
        assert sorted(row["copy"] for row in csv.DictReader(file)) == copies
    assert names.stat().st_mode & 0o077 == 0
    (films / "letter.txt").write_text("Dear colleague")
    with pytest.raises(
        DataError, match=r"1 of 3 files.*letter\.txt \(cannot be read as DICOM.*Nothing was written"
    ):
        deidentify_folder(tmp_path / "films", tmp_path / "second", secret=SECRET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "films", "names.csv"]
    found = deidentify_folder(
        tmp_path / "films", tmp_path / "third", secret=SECRET, broken="skip", keep_names=True
    )
    assert [one["file"] for one in found["skipped"]] == ["day 1/letter.txt"]
    assert (tmp_path / "third" / "day 1" / "x.dcm").exists()
    with pytest.raises(StudyError, match="exists already"):
        deidentify_folder(tmp_path / "films", out, secret=SECRET)
    with pytest.raises(StudyError, match="lies inside"):
        deidentify_folder(tmp_path / "films", tmp_path / "films" / "clean", secret=SECRET)
    with pytest.raises(DataError, match="does not exist"):
        deidentify_folder(tmp_path / "no", tmp_path / "fourth", secret=SECRET)


def test_copies_of_a_hospitals_files_show_the_same_pictures(tmp_path: Path) -> None:
    from suture.cohorts.starter import write_radiograph

    picture = np.random.default_rng(0).integers(0, 256, (64, 64)).astype(np.uint8)
    for number, kind in enumerate(("dicom", "dicom-inverted")):
        write_radiograph(tmp_path / f"{kind}.dcm", picture, kind, "17", number)
        new, report = deidentify(tmp_path / f"{kind}.dcm", SECRET)
        write(new, tmp_path / f"{kind}-clean.dcm")
        before, after = (read_image(tmp_path / f"{kind}{end}.dcm", 64) for end in ("", "-clean"))
        assert (before == after).all()
        assert before == pytest.approx(picture / 255, abs=1e-6)
        assert b"Example" not in (tmp_path / f"{kind}-clean.dcm").read_bytes()
        assert "PatientIdentityRemoved" not in report["kept"]


def test_the_command(suture_command, tmp_path: Path) -> None:
    everything(tmp_path / "film.dcm")
    done = suture_command("deid", "dicom", "film.dcm", "clean.dcm", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["written"] == 1
    assert pydicom.dcmread(tmp_path / "clean.dcm").PatientIdentityRemoved == "YES"
    done = suture_command("deid", "dicom", "film.dcm", "clean.dcm", cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr


def test_text_in_the_pixels_is_noticed_and_a_side_marker_is_not() -> None:
    from PIL import Image, ImageDraw, ImageFont

    from suture import cohorts

    clean = cohorts.load("radiographs", 3, hospitals=1, images=16, size=256).sites[0].table["image"]
    flagged = 0
    for picture in clean:
        image = Image.fromarray(picture)
        ImageDraw.Draw(image).text(
            (4, 60), "DOE, JANE 1957", fill=255, font=ImageFont.load_default(size=14)
        )
        flagged += has_text(np.asarray(image) / np.float32(255))
        assert not has_text(picture / np.float32(255))
    assert flagged >= 14
