"""The image column of a site's table: from the files it names, or from arrays in memory, to rows of
pixels.

A file is read once for training. Nothing is cached: decoded pixels live in the site's process and
nowhere else. Where the study says ``broken = "skip"``, a row whose file cannot be used does not
pass the wall. That is decided from the row's own file alone, before patients are counted, so
neighbouring tables stay neighbours and the public size is the size that trains; each file is then
read twice, because only decoding it shows that it can be decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from suture.errors import DataError
from suture.site.images.files import BrokenImage, Floats, read_image
from suture.site.sources import Source, SourceSpec


@dataclass(frozen=True)
class ImageFiles:
    """Where a study's image files are, and what happens to one that cannot be used."""

    base: Path = Path()
    """Where paths begin for a table that is not a file itself."""
    folder: str = ""
    """Relative to the table's own folder."""
    broken: Literal["refuse", "skip"] = "refuse"

    def root(self, source: Source) -> Path:
        """The folder that the names in the table are relative to.

        >>> ImageFiles(folder="films").root(SourceSpec(path="boston/films.csv"))
        PosixPath('boston/films')
        """
        place = source.path if isinstance(source, SourceSpec) else None
        return (self.base if place is None else Path(place).parent) / self.folder


@dataclass(frozen=True)
class Unusable:
    """A file that cannot be used: its row in the table, its name there, and why, in our own
    words."""

    row: int
    name: str
    reason: str


def read_files(names: Sequence[str], root: Path, size: int) -> tuple[Floats, list[Unusable]]:
    """The pixels of every file, one row each, and the files that cannot be used (their rows are
    0)."""
    x = np.zeros((len(names), size * size), np.float32)
    unusable = []
    for row, name in enumerate(names):
        try:
            x[row] = read_image(inside(root, name), size).pixels.ravel()
        except BrokenImage as error:
            unusable.append(Unusable(row, name or "(no file named)", str(error)))
    return x, unusable


def inside(root: Path, name: str) -> Path:
    """The file, which must lie in the folder of images: a table must not make the site read
    anything else.

    >>> inside(Path("films"), "a/1.dcm")
    PosixPath('films/a/1.dcm')
    >>> inside(Path("films"), "../../secret.key")
    Traceback (most recent call last):
    suture.site.images.files.BrokenImage: lies outside the folder of images
    """
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
    """Images held in an array (bytes from 0 to 255, or numbers from 0 to 1) as rows of pixels.

    >>> in_memory(np.array([[[0, 255], [51, 0]]], np.uint8), 2, "film").round(1).tolist()
    [[0.0, 1.0, 0.20000000298023224, 0.0]]
    """
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
            rows[i] = read_image(Path(str(path)), size).pixels.ravel()
        except BrokenImage as error:
            raise DataError(f"{path}: {error}") from None
    return rows
