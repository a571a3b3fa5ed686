"""The secondary capture: valid, read back pixel for pixel, nobody's by default and the patient's on
request."""

import numpy as np
import pytest

from suture.errors import DataError
from suture.site.dicom import CLASS, patient_of, source_of, write_capture

pydicom = pytest.importorskip("pydicom", reason="DICOM needs the imaging extra")
RASTER = np.random.default_rng(1).integers(
    0, 255, (33, 47, 3), dtype=np.uint8
)  # an odd number of bytes
IDENTIFYING = ("Doe^Jane", "PID-77", "19500101", "ACC-5", "House^G", "1.2.3.4")


@pytest.fixture
def film(tmp_path):
    """A radiograph as a hospital's machine writes it."""
    made = pydicom.dataset.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.1"
    made.file_meta.MediaStorageSOPClassUID = made.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID = "1.2.3.4.5.6"
    made.StudyInstanceUID, made.SeriesInstanceUID = "1.2.3.4", "1.2.3.4.5"
    made.PatientName, made.PatientID, made.PatientBirthDate, made.PatientSex = (
        "Doe^Jane",
        "PID-77",
        "19500101",
        "F",
    )
    made.StudyDate, made.StudyTime, made.AccessionNumber, made.StudyID = (
        "20260101",
        "101500",
        "ACC-5",
        "S1",
    )
    made.ReferringPhysicianName = "House^G"
    made.Modality, made.PhotometricInterpretation = "DX", "MONOCHROME2"
    made.Rows = made.Columns = 8
    (
        made.SamplesPerPixel,
        made.BitsAllocated,
        made.BitsStored,
        made.HighBit,
        made.PixelRepresentation,
    ) = 1, 8, 8, 7, 0
    made.PixelData = bytes(64)
    path = tmp_path / "film.dcm"
    pydicom.dcmwrite(path, made, enforce_file_format=True)
    return path


def write(path, film=None, identified=False):
    source = source_of(film) if film else None
    write_capture(
        RASTER,
        path,
        source=source,
        identified=identified,
        series="Region values",
        comment="Risk 40 %",
    )
    return pydicom.dcmread(path)


# Secondary Capture IOD (PS3.3 A.8.1): attributes of type 1 must hold a value, those of type 2 must
# be there.
TYPE_1 = (
    "StudyInstanceUID", "SeriesInstanceUID", "Modality", "ConversionType", "SOPClassUID", "SOPInstanceUID",
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "Rows", "Columns", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "PixelData",
)  # fmt: skip
TYPE_2 = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber", "StudyID",
    "ReferringPhysicianName", "SeriesNumber", "InstanceNumber", "PatientOrientation", "Manufacturer",
)  # fmt: skip


@pytest.mark.parametrize("identified", [False, True])
def test_every_attribute_that_the_standard_asks_for_is_there_and_pixels_come_back(
    tmp_path, film, identified
):
    found = write(tmp_path / "out.dcm", film, identified)
    for name in TYPE_1:
        assert found.get(name) not in (None, ""), name
    for name in TYPE_2:
        assert name in found, name
    assert found.SOPClassUID == found.file_meta.MediaStorageSOPClassUID == CLASS
    assert found.SOPClassUID.name == "Secondary Capture Image Storage"
    assert found.SOPInstanceUID == found.file_meta.MediaStorageSOPInstanceUID
    assert all(
        found[name].value.is_valid
        for name in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
    )
    assert np.array_equal(found.pixel_array, RASTER)
    assert len(found.PixelData) % 2 == 0
    for (
        element
    ) in found.iterall():  # every value fits its representation, as an archive checks on arrival
        for value in element.value if element.VM > 1 else [element.value]:
            if element.VR != "SQ":
                plain = str(value) if element.VR in ("IS", "PN", "UI") else value
                pydicom.valuerep.validate_value(element.VR, plain, pydicom.config.RAISE)


def test_by_default_nothing_leads_to_the_patient(tmp_path, film):
    found = write(tmp_path / "out.dcm", film)
    content = (tmp_path / "out.dcm").read_bytes()
    for value in IDENTIFYING:
        assert value.encode() not in content, value
    assert "SourceImageSequence" not in found
    assert found.PatientIdentityRemoved == "YES"
    assert all(found[name].value == "" or not str(found[name].value) for name in TYPE_2[:9])


def test_on_request_it_is_filed_beside_the_source(tmp_path, film):
    found, source = write(tmp_path / "out.dcm", film, identified=True), source_of(film)
    for name in (
        "PatientID",
        "PatientName",
        "PatientBirthDate",
        "StudyInstanceUID",
        "AccessionNumber",
        "StudyDate",
    ):
        assert found[name].value == source[name].value, name
    reference = found.SourceImageSequence[0]
    assert reference.ReferencedSOPInstanceUID == source.SOPInstanceUID
    assert reference.ReferencedSOPClassUID == source.SOPClassUID
    assert found.SeriesInstanceUID != source.SeriesInstanceUID
    assert found.SOPInstanceUID != source.SOPInstanceUID
    assert "PatientIdentityRemoved" not in found


def test_with_the_sites_secret_it_goes_with_the_de_identified_copy(tmp_path, film):
    from suture.site.dicom import deidentify

    write_capture(
        RASTER,
        tmp_path / "out.dcm",
        source=source_of(film),
        identified=False,
        series="s",
        comment="c",
        secret=b"k" * 32,
    )
    found, (copy, _) = pydicom.dcmread(tmp_path / "out.dcm"), deidentify(film, b"k" * 32)
    assert (found.PatientID, found.StudyInstanceUID) == (copy.PatientID, copy.StudyInstanceUID)
    assert found.SourceImageSequence[0].ReferencedSOPInstanceUID == copy.SOPInstanceUID
    content = (tmp_path / "out.dcm").read_bytes()
    for value in IDENTIFYING:
        assert value.encode() not in content, value


def test_identity_needs_a_source_that_has_one(tmp_path):
    with pytest.raises(DataError, match="--identify"):
        write(tmp_path / "out.dcm", None, identified=True)
    assert not list(tmp_path.iterdir())


def test_whose_file_it_is(tmp_path, film):
    assert patient_of(film) == "PID-77"
    other = tmp_path / "film.png"
    other.write_bytes(b"\x89PNG and nothing more")
    assert patient_of(other) is None
    broken = tmp_path / "broken.dcm"
    broken.write_bytes(bytes(128) + b"DICM" + b"\x08\x00\x05\x00CS\xff\xffDoe^Jane")
    with pytest.raises(DataError, match=r"header cannot be read \(\w+\)$"):
        patient_of(broken)
