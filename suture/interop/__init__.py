"""Interoperability: where hospitals' data differ, how sure that is, what it probably means, and what to ask.

Two kinds of evidence. `evidence`: profiles of the columns (site/profile.py), tested with a stated false-alarm rate.
`marks`: the affine layers that iFedAvg learned, with the paper's own rule. Nothing here reads a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_report(found: Mapping[str, Any], folder: Path) -> list[str]:
    """Write ``interop.html``, ``interop.json`` and a PNG of every map; returns the file names."""
    from suture.report import interop as page
    from suture.report.theme import save
    from suture.runfolder import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    page.write(found, folder / "interop.html")
    write_whole(folder / "interop.json", json.dumps(found, indent=1, allow_nan=False).encode())
    written = [folder / "interop.html", folder / "interop.json"]
    for name, chart in page.figures(found).items():
        save(chart, folder / f"interop-{name.replace('_', '-')}.png")
        written.append(folder / f"interop-{name.replace('_', '-')}.png")
    return [str(path) for path in written]
