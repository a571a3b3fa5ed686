"""Images, read inside the site: a DICOM, PNG or NPZ file to a square of pixels from 0 (dark) to 1,
and the image column of a table, from the files it names or from arrays, to rows of pixels.

Every pixel is a function of its own file and of the public size, so nothing is fitted on patients.
In order, for DICOM (PS3.3 C.7.6.3, C.11.1, C.11.2): stored values, modality LUT or rescale slope
and intercept, VOI LUT or window, polarity. Then, for all: padding to a square, area averaging.

Messages of the decoding libraries can quote header values, so they are never passed on: a file that
cannot be used is described in our own words. Only one-channel, one-frame images are read: what a
colour capture or a series shows is not one radiograph.

A file is read once for training. Nothing is cached: decoded pixels live in the site's process and
nowhere else. Where the study says ``broken = "skip"``, a row whose file cannot be used does not
pass the wall. That is decided from the row's own file alone, before patients are counted, so
neighbouring tables stay neighbours and the public size is the size that trains; each file is then
read twice, because only decoding it shows that it can be decoded.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suture.errors import DataError, MissingExtra
from suture.site.sources import Column, Source, SourceSpec

Floats = NDArray[np.float32]
Header: TypeAlias = Any
"""A pydicom dataset. The package is optional, so its types are not known here."""
MOST_PIXELS = 100_000_000
"""Larger pictures are refused undecoded: a few bytes can promise any number of pixels."""
MOST_SIDE = 20_000
"""Longer pictures are refused too: padded to a square, a thin one would fill the memory."""
KINDS = "DICOM, PNG and NPZ files"
MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


class BrokenImage(Exception):
    """The file cannot be used; the message says why without quoting anything from it."""


def read_image(path: Path, size: int) -> Floats:
    """Read one file and resample it to ``size`` x ``size``, or `BrokenImage`."""
    try:
        with path.open("rb") as file:
            start = file.read(132)
    except FileNotFoundError:
        raise BrokenImage("there is no such file") from None
    except OSError as error:
        raise BrokenImage(f"the file cannot be opened ({type(error).__name__})") from None
    if not start:
        raise BrokenImage("the file is empty")
    if start[128:] == b"DICM" or path.suffix.lower() in (".dcm", ".dicom"):
        with as_broken("has a damaged header"):  # pydicom converts values when they are asked for
            grey = grey_of(*read_stored(path))
    elif start.startswith(b"\x89PNG"):
        grey = _png(path)
    elif start.startswith(b"PK") and path.suffix.lower() == ".npz":
        grey = _npz(path)
    else:
        raise BrokenImage(f"is none of {KINDS}")
    if not np.isfinite(grey).all():
        raise BrokenImage("has pixels that are not numbers")
    return np.clip(resample(square(grey), size), 0, 1)


def square(grey: Floats) -> Floats:
    """The image in the middle of a black square: its shape is kept, whatever the film's format."""
    rows, columns = grey.shape
    side = max(rows, columns)
    if side > MOST_SIDE:
        raise BrokenImage(f"has a side of {side:,} pixels; at most {MOST_SIDE:,} are read")
    above, left = (side - rows) // 2, (side - columns) // 2
    return np.pad(grey, ((above, side - rows - above), (left, side - columns - left)))


def resample(grey: Floats, size: int) -> Floats:
    """Area averaging: a new pixel is the mean of what it covers, so nothing aliases."""
    if grey.shape == (size, size):
        return grey
    down, across = (_cover(length, size) for length in grey.shape)
    return np.asarray(down @ grey @ across.T, np.float32)


def _cover(old: int, new: int) -> Floats:
    """new x old: the share of each old pixel in each new one; every row sums to 1."""
    edges = np.arange(new + 1) * (old / new)
    low, high = edges[:-1, None], edges[1:, None]
    at = np.arange(old)[None, :]
    overlap = np.clip(np.minimum(high, at + 1) - np.maximum(low, at), 0, None)
    return np.asarray(overlap * (new / old), np.float32)


# --- DICOM ------------------------------------------------------------------------------------------------------------


def library(name: str, what: str) -> ModuleType:
    """An optional package, or the install command."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise MissingExtra(f"{what} needs {package}: pip install 'suture[imaging]'") from None


@contextmanager
def as_broken(words: str) -> Iterator[None]:
    """Any failure of a library as a `BrokenImage`, because its own message may quote the file."""
    try:
        yield
    except (BrokenImage, MissingExtra):
        raise
    except Exception as error:
        raise BrokenImage(f"{words} ({type(error).__name__})") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings and log lines of the libraries: they quote header values."""
    log = logging.getLogger("pydicom")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def read_stored(path: Path) -> tuple[Header, Column]:
    """Header and stored values of a one-frame monochrome DICOM image; else `BrokenImage`."""
    pydicom = library("pydicom", "reading DICOM files")
    with quiet():
        with as_broken("cannot be read as DICOM"):
            image = pydicom.dcmread(path)
            frames = int(image.get("NumberOfFrames") or 1)
            samples = int(image.get("SamplesPerPixel", 1))
            pixels = int(image.get("Rows", 0)) * int(image.get("Columns", 0))
        if "PixelData" not in image or not pixels:
            raise BrokenImage("is a DICOM file without an image")
        if frames > 1:
            raise BrokenImage(f"has {frames} frames; one-frame images are read only")
        if samples != 1 or image.get("PhotometricInterpretation") not in MONOCHROME:
            raise BrokenImage(f"is not monochrome ({' or '.join(MONOCHROME)})")
        if pixels > MOST_PIXELS:
            raise BrokenImage(f"has over {MOST_PIXELS:,} pixels")
        return image, _decoded(image)


def grey_of(image: Header, stored: Column) -> Floats:
    """The picture as a viewer shows it first, from 0 (dark) to 1, in its own size.

    Worked out for each value that occurs (4,096 or so), not for each pixel: five times as fast.
    """
    low = int(stored.min())
    places = np.subtract(stored, low, dtype=np.int64)
    if int(places.max()) < 1 << 20:
        there = np.zeros(int(places.max()) + 1, bool)
        there[places] = True
        found = np.flatnonzero(there)
        index = np.cumsum(there)[places] - 1
    else:  # 32-bit files
        found, index = np.unique(places, return_inverse=True)
    levels = (found + low).astype(stored.dtype)
    with quiet(), as_broken("its rescale, window or lookup table cannot be applied"):
        grey = _shown(image, levels)
    if image.PhotometricInterpretation == "MONOCHROME1":  # in which low values are bright
        grey = 1 - grey
    padding = image.get("PixelPaddingValue")
    grey = np.where(levels == padding, 0, grey) if isinstance(padding, int) else grey
    return np.asarray(np.asarray(grey, np.float32)[index.reshape(stored.shape)], np.float32)


def _decoded(image: Header) -> Column:
    """The stored values. A missing decoder stops the study: it is no fault of the file."""
    try:
        syntax = image.file_meta.TransferSyntaxUID
        compressed = bool(syntax.is_compressed)
    except Exception:
        raise BrokenImage("does not say how its pixels are stored (transfer syntax)") from None
    if compressed:
        try:
            decoder = library("pydicom.pixels", "reading DICOM files").get_decoder(syntax)
        except NotImplementedError:
            raise BrokenImage("is compressed in a way that no decoder knows") from None
        if not decoder.is_available:
            raise MissingExtra(
                f"images compressed as {syntax.name} need a decoder that is not installed: pip "
                "install 'suture[imaging]'"
            )
    with as_broken("its pixels cannot be decoded"):
        stored = np.asarray(image.pixel_array)
        if stored.shape != (int(image.Rows), int(image.Columns)) or stored.dtype.kind not in "ui":
            raise ValueError("pixels and header differ")
        # Old files keep overlays in the bits above those of the image.
        return own_bits(stored, int(image.BitsStored), signed=bool(image.PixelRepresentation))


def own_bits(stored: Column, bits: int, *, signed: bool) -> Column:
    """Stored values without anything in the bits above ``BitsStored``."""
    unused = 8 * stored.dtype.itemsize - bits
    if unused <= 0:
        return np.ascontiguousarray(stored)
    kind = np.dtype(f"{'i' if signed else 'u'}{stored.dtype.itemsize}")
    return np.ascontiguousarray(np.right_shift(np.left_shift(stored.astype(kind), unused), unused))


def _shown(image: Header, stored: Column) -> NDArray[np.float64]:
    """What a viewer would show first: modality LUT, then VOI LUT, window, or own range."""
    pixels = library("pydicom.pixels", "reading DICOM files")
    values = np.asarray(pixels.apply_modality_lut(stored, image), np.float64)
    if image.get("VOILUTSequence"):
        table = image.VOILUTSequence[0]
        looked_up = pixels.apply_voi(values.astype(np.int64), image, index=0)
        return np.asarray(looked_up, np.float64) / (2.0 ** int(table.LUTDescriptor[2]) - 1)
    centre, width = _first(image.get("WindowCenter")), _first(image.get("WindowWidth"))
    if centre is not None and width is not None:
        return windowed(values, centre, width, str(image.get("VOILUTFunction") or "LINEAR").upper())
    padding = image.get("PixelPaddingValue")
    real = values[stored != padding] if isinstance(padding, int) else values
    low, high = (float(real.min()), float(real.max())) if real.size else (0.0, 0.0)
    return np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)


def _first(value: str | float | Sequence[str | float] | None) -> float | None:
    """The first of several windows: the one a viewer shows."""
    if value is None or value == "":
        return None
    return float(value) if isinstance(value, str | int | float) else float(value[0])


def windowed(
    values: NDArray[np.float64], centre: float, width: float, function: str = "LINEAR"
) -> NDArray[np.float64]:
    """A window as the standard defines it (PS3.3 C.11.2.1.2, C.11.2.1.3), onto 0 to 1."""
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - centre) / width)))
    if function == "LINEAR_EXACT":
        return np.clip((values - centre) / width + 0.5, 0, 1)
    if width < 1:
        raise ValueError("a LINEAR window is at least 1 wide")
    if width == 1:
        return np.where(values <= centre - 0.5, 0.0, 1.0)
    return np.clip((values - (centre - 0.5)) / (width - 1) + 0.5, 0, 1)


# --- PNG and NPZ ------------------------------------------------------------------------------------------------------


def _png(path: Path) -> Floats:
    pillow = library("PIL.Image", "reading PNG files")
    with as_broken("cannot be read as PNG"), quiet(), pillow.open(path, formats=("PNG",)) as image:
        if image.width * image.height > MOST_PIXELS:
            raise BrokenImage(f"has over {MOST_PIXELS:,} pixels")
        mode = str(image.mode)
        grey = np.asarray(image)
    if mode in ("RGB", "RGBA", "LA"):
        colours = grey[..., : {"RGB": 3, "RGBA": 3, "LA": 1}[mode]]
        if (colours != colours[..., :1]).any():
            raise BrokenImage("is a colour image")
        grey = colours[..., 0]
    elif mode not in ("L", "1") and not mode.startswith("I"):
        raise BrokenImage("is a colour image")
    full = 65535 if mode.startswith("I") else 1 if mode == "1" else 255
    return np.asarray(grey, np.float32) / np.float32(full)


def _npz(path: Path) -> Floats:
    with (
        as_broken("cannot be read as NPZ"),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        names = archive.files
        if "image" not in names and len(names) != 1:
            raise BrokenImage("holds several arrays and none is named image")
        image = archive["image" if "image" in names else names[0]]
    if image.ndim != 2 or not image.size:
        raise BrokenImage("is not a two-dimensional array")
    if image.dtype in (np.uint8, np.uint16):
        return np.asarray(image, np.float32) / np.float32(np.iinfo(image.dtype).max)
    numbers = image.dtype.kind == "f" and np.isfinite(image).all()
    if numbers and image.min() >= 0 and image.max() <= 1:
        return np.asarray(image, np.float32)
    raise BrokenImage("holds neither bytes, nor 16-bit numbers, nor numbers from 0 to 1")


# --- an image column: from the files it names, or from arrays in memory, to rows of pixels ----------------------------


@dataclass(frozen=True)
class ImageFiles:
    """Where a study's image files are, and what happens to one that cannot be used."""

    base: Path = Path()  # where paths begin for a table that is not a file itself
    folder: str = ""  # relative to the table's own folder
    broken: Literal["refuse", "skip"] = "refuse"

    def root(self, source: Source) -> Path:
        """The folder that the names in the table are relative to."""
        place = source.path if isinstance(source, SourceSpec) else None
        return (self.base if place is None else Path(place).parent) / self.folder


@dataclass(frozen=True)
class Unusable:
    """A file that cannot be used: its row and name in the table, and why, in our own words."""

    row: int
    name: str
    reason: str


def read_files(names: Sequence[str], root: Path, size: int) -> tuple[Floats, list[Unusable]]:
    """The pixels of every file, one row each, and the files that cannot be used (rows of 0)."""
    x = np.zeros((len(names), size * size), np.float32)
    unusable = []
    for row, name in enumerate(names):
        try:
            x[row] = read_image(inside(root, name), size).ravel()
        except BrokenImage as error:
            unusable.append(Unusable(row, name or "(no file named)", str(error)))
    return x, unusable


def inside(root: Path, name: str) -> Path:
    """The file in the folder of images: a table must not make the site read anything else."""
    if not name:
        raise BrokenImage("no file is named")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BrokenImage("lies outside the folder of images")
    return root / name


def reasons(unusable: Sequence[Unusable]) -> str:
    """Why files cannot be used, in counts; their names stay in a list of the site's own."""
    found = Counter(one.reason for one in unusable).most_common(5)
    return ", ".join(f"{count} x {reason}" for reason, count in found)


def in_memory(column: ArrayLike, size: int, name: str) -> Floats:
    """Images held in an array (bytes, or numbers from 0 to 1) as rows of pixels."""
    images = np.asarray(column)
    if images.ndim < 2 or images[:1].size not in (0, size * size) or images.dtype.kind not in "uif":
        raise DataError(
            f"column {name!r}: expected images of {size} x {size} numbers, found an array of shape "
            f"{images.shape} ({images.dtype}); set size in [images] to that of the images"
        )
    x = images.reshape(len(images), size * size)
    if images.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    if x.size and not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
        raise DataError(f"column {name!r}: pixels must be bytes, or numbers from 0 to 1")
    return x.astype(np.float32)


def of_any(column: ArrayLike, size: int, name: str) -> Floats:
    """Images to be scored: an array, or the paths of files."""
    given = np.asarray(column)
    if given.dtype.kind not in "OU":
        return in_memory(given, size, name)
    rows = np.zeros((len(given), size * size), np.float32)
    for i, path in enumerate(given.tolist()):
        try:
            rows[i] = read_image(Path(str(path)), size).ravel()
        except BrokenImage as error:
            raise DataError(f"{path}: {error}") from None
    return rows
