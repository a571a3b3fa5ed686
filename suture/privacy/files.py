"""Files that are replaced whole: a kill leaves the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from suture.errors import RunError


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write beside, flush, then rename over: never half a file. ``mode``: who may open it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise RunError(f"{path} cannot be written: {error}") from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
