"""How often the detector of burnt-in text (suture/site/dicom.py) finds text, and how often it
cries wolf.

    python benchmarks/burnt_in_text.py [--images 400] [--seed 2]

Generated radiographs of all ten scanners (cohort `radiographs`, side marker included) at 256 x 256
pixels, each once as it is and once with one line of text, an invented name, date or number, in a
random corner, size and brightness.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.stats import binomtest

from suture import cohorts
from suture.site.dicom import has_text

LINES = (
    "Smith^John",
    "DOE, JANE M",
    "12.03.1957",
    "MRN 00482913",
    "St. Mary Hospital",
    "1957-03-12 14:22",
    "ID:99-1234",
)


def write_line(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One line of text in a corner, 8 to 22 pixels high at 256, from light grey to white."""
    image = Image.fromarray(picture)
    size = int(rng.integers(9, 23))
    text, font = str(rng.choice(LINES)), ImageFont.load_default(size=size)
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    wide, tall = int(right - left), int(bottom - top)
    x = (
        int(rng.integers(2, 12))
        if rng.random() < 0.5
        else max(0, 256 - wide - int(rng.integers(4, 12)))
    )
    y = int(rng.integers(2, 12)) if rng.random() < 0.5 else 256 - tall - int(rng.integers(8, 16))
    draw.text((x, y), text, fill=int(rng.integers(200, 256)), font=font)
    return np.asarray(image)


def main() -> None:
    """Print one JSON object with both rates and their 95 % intervals (Clopper-Pearson)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--seed", type=int, default=2)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    cohort = cohorts.load("radiographs", asked.seed, images=max(8, asked.images // 10), size=256)
    clean = np.concatenate([site.table["image"] for site in cohort.sites])[: asked.images]
    found = {"with_text": 0, "without_text": 0}
    for picture in clean:
        found["without_text"] += has_text(picture / np.float32(255))
        found["with_text"] += has_text(write_line(picture, rng) / np.float32(255))
    rates = {}
    for name, hits in found.items():
        interval = binomtest(hits, len(clean)).proportion_ci(method="exact")
        rates[name] = {
            "flagged": hits / len(clean),
            "interval": [round(interval.low, 3), round(interval.high, 3)],
        }
    print(json.dumps({"images": len(clean), "seed": asked.seed, **rates}))


if __name__ == "__main__":
    main()
