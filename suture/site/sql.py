"""SQL text from values: strings, names and paths, quoted so that they mean themselves."""

from __future__ import annotations

import re
from pathlib import Path


def quoted(value: str) -> str:
    """An SQL string, for DuckDB.

    >>> quoted("O'Hara")
    "'O''Hara'"
    """
    return "'" + value.replace("'", "''") + "'"


def escaped(value: str) -> str:
    """An SQL string, for PostgreSQL: an escape string reads the same whether the server's
    ``standard_conforming_strings`` is on or off, where a backslash in a plain one does not.

    >>> print(escaped("O'Hara\\\\"))
    E'O''Hara\\\\'
    """
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def quoted_name(value: str) -> str:
    """An SQL identifier."""
    return '"' + value.replace('"', '""') + '"'


def literal_path(path: Path) -> str:
    """A path as SQL string in which * ? [ mean themselves (DuckDB reads patterns)."""
    return quoted(re.sub(r"([*?\[])", r"[\1]", str(path)))
