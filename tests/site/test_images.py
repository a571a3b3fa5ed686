"""Image files: exact pixels for every kind that is read, our own words for every kind that is
not."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suture.errors import MissingExtra
from suture.site.dicom import deidentify, write
from suture.site.images import BrokenImage, library, read_image, resample, square, windowed

pydicom = pytest.importorskip("pydicom", reason="pip install 'suture[imaging]'")
pillow = pytest.importorskip("PIL.Image", reason="pip install 'suture[imaging]'")
RAMP = np.array([[0, 100], [200, 255]], np.uint8)
DAMAGES = 100


def dicom(path: Path, stored: np.ndarray, *, syntax: str | None = None, **fields) -> Path:
    """A small DICOM file with the given stored values."""
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = (
        meta.MediaStorageSOPClassUID,
        meta.MediaStorageSOPInstanceUID,
    )
    file.Modality, file.Rows, file.Columns = "DX", *stored.shape[:2]
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated = 8 * stored.dtype.itemsize
    file.BitsStored = fields.pop("BitsStored", file.BitsAllocated)
    file.HighBit, file.PixelRepresentation = file.BitsStored - 1, int(stored.dtype.kind == "i")
    file.PixelData = stored.tobytes()
    for name, value in fields.items():
        setattr(file, name, [Dataset() | dict(value)] if isinstance(value, dict) else value)
    if syntax is not None:
        file.compress(syntax)
    file.save_as(path)
    return path


def pixels(path: Path) -> list[list[float]]:
    return np.round(read_image(path, 2).astype(np.float64), 4).tolist()


def test_window_of_a_viewer(tmp_path: Path) -> None:
    """PS3.3 C.11.2.1.2 by hand: centre 128, width 256 maps v to (v - 127.5) / 255 + 0.5 = v /
    255."""
    path = dicom(tmp_path / "a.dcm", RAMP, WindowCenter=128, WindowWidth=256)
    assert pixels(path) == [[0.0, 0.3922], [0.7843, 1.0]]
    narrow = dicom(
        tmp_path / "b.dcm", RAMP, WindowCenter=[100.5, 0], WindowWidth=[101, 1]
    )  # the first window counts
    assert pixels(narrow) == [[0.0, 0.5], [1.0, 1.0]]


def test_monochrome1_is_turned_round(tmp_path: Path) -> None:
    path = dicom(
        tmp_path / "a.dcm",
        RAMP,
        WindowCenter=128,
        WindowWidth=256,
        PhotometricInterpretation="MONOCHROME1",
    )
    assert pixels(path) == [[1.0, 0.6078], [0.2157, 0.0]]


def test_rescale_comes_before_the_window(tmp_path: Path) -> None:
    path = dicom(
        tmp_path / "a.dcm",
        RAMP.astype(np.uint16),
        BitsStored=12,
        RescaleSlope="2",
        RescaleIntercept="-10",
        WindowCenter="245.5",
        WindowWidth="511",
    )
    assert pixels(path) == [[0.0, 0.3922], [0.7843, 1.0]]  # 2 v - 10, from -10 to 500


def test_without_a_window_the_images_own_range(tmp_path: Path) -> None:
    twelve = dicom(tmp_path / "a.dcm", np.array([[10, 20], [30, 50]], np.uint16), BitsStored=12)
    assert pixels(twelve) == [[0.0, 0.25], [0.5, 1.0]]
    signed = dicom(tmp_path / "b.dcm", np.array([[-100, 0], [0, 100]], np.int16))
    assert pixels(signed) == [[0.0, 0.5], [0.5, 1.0]]
    flat = dicom(tmp_path / "c.dcm", np.full((2, 2), 7, np.uint16))
    assert pixels(flat) == [[0.0, 0.0], [0.0, 0.0]]


def test_padding_is_dark_and_outside_the_range(tmp_path: Path) -> None:
    stored = np.array([[10, 20], [30, 4000]], np.uint16)
    path = dicom(tmp_path / "a.dcm", stored, BitsStored=12, PixelPaddingValue=4000)
    assert pixels(path) == [[0.0, 0.5], [1.0, 0.0]]


def test_other_window_functions_and_lookup_tables(tmp_path: Path) -> None:
    assert windowed(np.array([128.0, 228.0]), 128, 100, "SIGMOID") == pytest.approx(
        [0.5, 1 / (1 + np.exp(-4))]
    )
    assert windowed(np.array([127.4, 127.6]), 128, 1).tolist() == [0, 1]
    with pytest.raises(ValueError, match="at least 1"):
        windowed(np.zeros(1), 0, 0)
    from pydicom.dataset import Dataset

    table = Dataset()
    table.LUTDescriptor = [4, 0, 8]
    table.LUTData = np.array([0, 255, 51, 102], np.uint16).tobytes()
    path = dicom(tmp_path / "a.dcm", np.array([[0, 1], [2, 3]], np.uint8), VOILUTSequence=[table])
    assert pixels(path) == [[0.0, 1.0], [0.2, 0.4]]


@pytest.mark.parametrize(
    ("uid", "name"),
    [
        ("1.2.840.10008.1.2.5", "RLE"),
        ("1.2.840.10008.1.2.4.90", "JPEG 2000"),
        ("1.2.840.10008.1.2.4.80", "JPEG-LS"),
    ],
)
def test_compressed_files_give_the_same_pixels(tmp_path: Path, uid: str, name: str) -> None:
    """Lossless: bit for bit what the plain file gives."""
    stored = np.random.default_rng(0).integers(0, 4096, (64, 64)).astype(np.uint16)
    plain = read_image(dicom(tmp_path / "a.dcm", stored, BitsStored=12), 64)
    try:
        path = dicom(tmp_path / "b.dcm", stored, BitsStored=12, syntax=uid)
    except (NotImplementedError, RuntimeError):
        pytest.skip(f"no encoder of {name} to write a test file with")
    assert (read_image(path, 64) == plain).all()


def test_jpeg_lossless_as_radiography_departments_store_it(tmp_path: Path) -> None:
    gdcm = pytest.importorskip("gdcm", reason="pip install 'suture[imaging]'")
    stored = np.random.default_rng(0).integers(0, 4096, (16, 16)).astype(np.uint16)
    plain = dicom(tmp_path / "a.dcm", stored, BitsStored=12)
    reader, change, writer = (
        gdcm.ImageReader(),
        gdcm.ImageChangeTransferSyntax(),
        gdcm.ImageWriter(),
    )
    reader.SetFileName(str(plain))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(tmp_path / "b.dcm"))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    found = read_image(tmp_path / "b.dcm", 16)
    syntax = pydicom.dcmread(tmp_path / "b.dcm").file_meta.TransferSyntaxUID
    assert syntax == "1.2.840.10008.1.2.4.70"
    assert (found == read_image(plain, 16)).all()


def test_a_decoder_that_is_not_installed_stops_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dicom(tmp_path / "a.dcm", RAMP, syntax="1.2.840.10008.1.2.5")
    import pydicom.pixels

    class Absent:
        is_available = False

    monkeypatch.setattr(pydicom.pixels, "get_decoder", lambda uid: Absent())
    with pytest.raises(MissingExtra, match=r"RLE Lossless.*pip install 'suture\[imaging\]'"):
        read_image(path, 2)


def test_without_pydicom_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"needs not_installed: pip install 'suture\[imaging\]'"):
        library("not_installed.part", "reading")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"NumberOfFrames": 3}, "has 3 frames"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "is not monochrome"),
        ({"Rows": 0}, "without an image"),
        ({"Rows": 60000, "Columns": 60000}, "has over 100,000,000 pixels"),
        ({"Rows": 400}, "its pixels cannot be decoded"),
        ({"WindowCenter": 1, "WindowWidth": 0}, "window or lookup table cannot be applied"),
    ],
)
def test_dicom_that_cannot_be_used(tmp_path: Path, fields: dict, reason: str) -> None:
    path = dicom(tmp_path / "Smith^John.dcm", RAMP, PatientName="Smith^John", **fields)
    with pytest.raises(BrokenImage, match=reason) as caught:
        read_image(path, 2)
    assert "Smith" not in str(caught.value)


def test_broken_and_foreign_files(tmp_path: Path) -> None:
    good = dicom(tmp_path / "good.dcm", RAMP).read_bytes()
    cases = {
        "cut.dcm": (good[:200], "cannot be read as DICOM|without an image"),
        "empty.png": (b"", "the file is empty"),
        "letter.dcm": (b"Dear Dr Smith, " * 20, "cannot be read as DICOM"),
        "film.jpg": (b"\xff\xd8\xff\xe0" + b"0" * 300, "is none of DICOM, PNG and NPZ"),
        "bad.png": (b"\x89PNG\r\n\x1a\n" + b"0" * 300, "cannot be read as PNG"),
        "bad.npz": (b"PK\x03\x04" + b"0" * 300, "cannot be read as NPZ"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BrokenImage, match=reason):
            read_image(tmp_path / name, 8)
    with pytest.raises(BrokenImage, match="no such file"):
        read_image(tmp_path / "nowhere.dcm", 8)
    with pytest.raises(BrokenImage, match="cannot be opened"):
        read_image(tmp_path, 8)


def test_png_of_8_and_16_bits(tmp_path: Path) -> None:
    pillow.fromarray(RAMP).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png") == [[0.0, 0.3922], [0.7843, 1.0]]
    pillow.fromarray(RAMP.astype(np.uint16) * 257).save(tmp_path / "b.png")
    assert pixels(tmp_path / "b.png") == [[0.0, 0.3922], [0.7843, 1.0]]
    grey = np.repeat(RAMP[..., None], 3, axis=2)
    pillow.fromarray(grey).save(tmp_path / "c.png")  # grey saved as colour
    assert pixels(tmp_path / "c.png") == [[0.0, 0.3922], [0.7843, 1.0]]
    grey[0, 0, 1] = 9
    pillow.fromarray(grey).save(tmp_path / "d.png")
    with pytest.raises(BrokenImage, match="is a colour image"):
        read_image(tmp_path / "d.png", 2)


def test_npz(tmp_path: Path) -> None:
    for i, array in enumerate([RAMP, RAMP.astype(np.uint16) * 257, RAMP / 255]):
        np.savez(tmp_path / f"{i}.npz", image=array, other=np.zeros(1))
        assert pixels(tmp_path / f"{i}.npz") == [[0.0, 0.3922], [0.7843, 1.0]]
    for i, (arrays_, reason) in enumerate(
        [
            ({"a": RAMP, "b": RAMP}, "none is named image"),
            ({"image": np.zeros(3)}, "not a two-dimensional array"),
            ({"image": np.full((2, 2), 7.0)}, "neither bytes"),
            ({"image": np.full((2, 2), np.nan)}, "neither bytes"),
        ]
    ):
        np.savez(tmp_path / f"bad{i}.npz", **arrays_)
        with pytest.raises(BrokenImage, match=reason):
            read_image(tmp_path / f"bad{i}.npz", 2)


@settings(max_examples=40, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 40)),
        elements=st.floats(0, 1, width=32),
    ),
    st.integers(1, 20),
)
def test_resampling_keeps_the_mean_and_the_range(grey: np.ndarray, size: int) -> None:
    whole = square(grey)
    small = resample(whole, size)
    assert small.shape == (size, size)
    assert small.mean() == pytest.approx(whole.mean(), abs=1e-5)
    assert small.min() >= whole.min() - 1e-5
    assert small.max() <= whole.max() + 1e-5


def test_resampling_agrees_with_pillow() -> None:
    """Pillow's BOX filter is area averaging; where the sides divide it is the mean of blocks."""
    grey = np.random.default_rng(1).random((60, 60)).astype(np.float32)
    other = np.asarray(pillow.fromarray(grey).resize((12, 12), pillow.Resampling.BOX))
    assert resample(grey, 12) == pytest.approx(other, abs=1e-5)
    assert resample(grey, 12) == pytest.approx(
        grey.reshape(12, 5, 12, 5).mean(axis=(1, 3)), abs=1e-5
    )


@pytest.mark.parametrize("syntax", [None, "1.2.840.10008.1.2.5"])
def test_damaged_files_are_broken_or_read_and_nothing_else(
    tmp_path: Path, syntax: str | None
) -> None:
    """Bytes changed or cut anywhere: pixels within 0 to 1, or our own words without the
    patient's."""
    rng = np.random.default_rng(0)
    whole = dicom(
        tmp_path / "a.dcm",
        RAMP,
        syntax=syntax,
        PatientName="Smith^John",
        WindowCenter=9,
        WindowWidth=9,
    ).read_bytes()
    for _ in range(DAMAGES):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[rng.integers(0, len(whole), rng.integers(1, 7))] = rng.integers(0, 256)
        end = len(whole) if rng.random() < 0.7 else int(rng.integers(1, len(whole)))
        (tmp_path / "b.dcm").write_bytes(damaged[:end].tobytes())
        said = ""
        try:
            found = read_image(tmp_path / "b.dcm", 4)
        except (BrokenImage, MissingExtra) as error:
            said, found = str(error), np.zeros((4, 4))
        assert "Smith" not in said
        assert found.shape == (4, 4)
        assert found.min() >= 0
        assert found.max() <= 1
        with contextlib.suppress(
            BrokenImage, MissingExtra
        ):  # and a copy is made whole, or refused in our words
            write(deidentify(tmp_path / "b.dcm", b"k")[0], tmp_path / "c.dcm")
