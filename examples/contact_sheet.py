"""A picture of the generated cohort `radiographs`: one row a hospital, so that the scanners' looks
can be compared.

    python examples/contact_sheet.py sheet.png

Needs `pip install "suture[imaging]"`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from suture import cohorts


def sheet(path: Path, columns: int = 12, seed: int = 7) -> None:
    """Write the first radiographs of every hospital, in two times their size."""
    cohort = cohorts.load("radiographs", seed, images=max(8, columns))
    rows = [np.hstack(site.table["image"][:columns]) for site in cohort.sites]
    Image.fromarray(np.kron(np.vstack(rows), np.ones((2, 2), np.uint8))).save(path)


if __name__ == "__main__":
    sheet(Path(sys.argv[1] if len(sys.argv) > 1 else "radiographs.png"))
