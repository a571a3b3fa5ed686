"""`suture explain --regions`: where a model looks at each hospital, and whether it points at
lesions (docs/explaining-images.md). Exact figures from rows, so several hospitals together are for
generated patients only.

The fair radiology paper's "SHAP Dice" is not defined there. Here, on images with a lesion:

- **regions**: the lesion lies in k regions (those that hold at least a tenth of it); the k regions
  with the largest values above zero are compared with them, Dice of two sets of names.
- **pixels**: Dice of the pixels of those top regions and the lesion's pixels; ``ceiling`` is the
  most that any choice of regions reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

import altair as alt
import numpy as np
from numpy.typing import NDArray

from suture.cohorts.radiographs import truth
from suture.errors import DataError, StudyError
from suture.explain.image import QUICK_SAMPLES, ImageRun
from suture.explain.regions import CORNERS, Mask, Regions, grid, mean_image
from suture.explain.run import Answer, Floats, Rows, place_of, write_page
from suture.explain.shapley import Predict, explain_images
from suture.privacy.software import VERSION
from suture.report.theme import INK, Figure, finish, table
from suture.report.words import Table, plain
from suture.site.cohort import SiteData
from suture.site.gate import Place

NAMED_FROM = 1.5
"""A corner is named when it holds more than so many equal shares of the weight."""
HOLDS = 0.1
"""Share of a lesion's pixels that makes a region one with lesion: an edge that strays over a border
does not."""
CAPTION = (
    "Mean absolute region value of each hospital's images: darker regions move predictions more."
)


class Dice(TypedDict):
    """Means over the images that have a lesion."""

    images: int
    regions: float
    pixels: float
    ceiling: float


class SiteDice(Dice):
    """The same over all hospitals; and at each."""

    sites: dict[str, Dice]


class Pointing(NamedTuple):
    """How well one image's values point at its lesion."""

    regions: float
    pixels: float
    ceiling: float
    wanted: tuple[str, ...]
    named: tuple[str, ...]


def explain_hospitals(
    folder: str | Path,
    *,
    site: str | None = None,
    images: int = 20,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Mean absolute value of each region over some images of each hospital; writes a page and a
    figure."""
    if images < 2:
        raise StudyError(f"--images: expected at least 2, found {images}")
    run = ImageRun.open(folder)
    if site is None and not run.world.generated:
        raise StudyError(
            "means over real patients' images are computed from rows and may not leave their "
            "sites: name one with --site; its page stays there"
        )
    places = [place_of(run.world, site)] if site is not None else list(run.world.places)
    regions, weights = grid(run.size), {}
    for number, place in enumerate(places, start=1):
        say(f"[{number}/{len(places)}] {place.name}")
        data = run.rows_of(place.name)
        rows, mean = _some(data, images, number), mean_image(data.train.x)
        predict = run.predict(place.name)
        values = explain_images(predict, rows, mean, regions, samples=QUICK_SAMPLES)
        weights[place.name] = np.abs(values).mean(axis=0)
    hospitals, found = list(weights), np.array(list(weights.values()))
    findings = marked_corners(hospitals, regions.names, found)
    measured = _dice_of_sites(run, places, images) if _lesions_known(run) else None
    name = run.run.record["name"]
    context = {
        "name": f"Where the model looks: {name}",
        "intro": f"How much each region of an image moves {run.run.label}'s prediction.",
        "findings": findings,
        "table": weights_table(hospitals, regions.names, found),
        "dice": _dice_table(measured) if measured else None,
        "notes": _notes(site, images),
        "footer": [("Study", name), ("Method", run.run.method), ("Suture", VERSION)],
    }
    path = (out or run.run.explanations) / (f"regions-{site}" if site else "regions")
    charts = {"weights": (weights_map(hospitals, regions.names, found), CAPTION)}
    return {
        **write_page(path, "image_weights.html", context, charts, f"{name}-regions"),
        "dice": measured,
        "regions": list(regions.names),
        "weights": {hospital: row.tolist() for hospital, row in weights.items()},
        "findings": findings,
    }


def _some(data: SiteData, count: int, seed: int) -> Rows:
    rows = data.test.x if data.test is not None else data.train.x
    return rows[np.random.default_rng(seed).permutation(len(rows))[:count]]


def _lesions_known(run: ImageRun) -> bool:
    cohort = run.run.study.cohort
    return cohort is not None and cohort.name == "radiographs"


def _shares(weights: Floats) -> Floats:
    """Each region's share of its hospital's weight."""
    return np.asarray(weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12))


def marked_corners(hospitals: Sequence[str], names: Sequence[str], weights: Floats) -> list[str]:
    """Corners with over one and a half equal shares of a hospital's weight, in sentences.

    At just an equal share every other hospital would be named by chance, and the one that matters
    would be lost among them.
    """
    findings = []
    for name, share in zip(names, _shares(weights).T, strict=True):
        high = share > NAMED_FROM / len(names)
        if name not in CORNERS or not high.any():
            continue
        order = [i for i in np.argsort(-share, kind="stable") if high[i]]
        where = ", ".join(f"{100 * share[i]:.0f} % of the weight at {hospitals[i]}" for i in order)
        rest = f"; elsewhere at most {100 * share[~high].max():.0f} %" if not high.all() else ""
        findings.append(f"{name}: {where}{rest}, an equal share would be {100 / len(names):.0f} %")
    return findings


def lesion_dice(
    folder: str | Path,
    *,
    images: int = 20,
    seed: int = 0,
    piece: str | None = None,
    samples: int = QUICK_SAMPLES,
) -> SiteDice:
    """The fair radiology paper's "SHAP Dice" of a run on `radiographs`: each hospital's model on
    its own test images with a lesion.

    ``seed`` counts the run's seeds from 0; each has its own generated patients and its own model.
    ``piece`` is a part of an ensemble, such as "global model".
    """
    run = ImageRun.open(folder, seed)
    if not _lesions_known(run):
        raise StudyError("lesions are known for the generated cohort radiographs only")
    return _dice_of_sites(run, run.world.places, images, piece, samples)


def _dice_of_sites(
    run: ImageRun,
    places: Sequence[Place],
    images: int,
    piece: str | None = None,
    samples: int = QUICK_SAMPLES,
) -> SiteDice:
    study = run.run.study
    options = {"images": 500, **(study.cohort.options() if study.cohort else {})}
    share = float(options.get("test_fraction", study.evaluation.holdout))
    numbers = {place.name: i for i, place in enumerate(run.world.places)}
    sites: dict[str, Dice] = {}
    for place in places:
        count, number = int(options["images"]), numbers[place.name]
        known = truth(run.world.seed, number, images=count, size=run.size, test_fraction=share)
        lesions = known.masks.lesions
        rows = place.test if isinstance(place.test, dict) else {}
        ill = np.flatnonzero(lesions.any(axis=(1, 2)))[:images]
        if not len(ill) or "image" not in rows:
            continue
        x = np.asarray(rows["image"][ill], np.float32).reshape(len(ill), -1) / np.float32(255)
        background = mean_image(run.rows_of(place.name).train.x)
        predict = run.predict(place.name, piece=piece)
        sites[place.name] = shap_dice(predict, x, background, lesions[ill], samples=samples)
    if not sites:
        raise StudyError(
            "no test image of this run has a lesion; give evaluation.holdout more images"
        )
    found = list(sites.values())
    total = sum(one["images"] for one in found)
    return {
        "images": total,
        "regions": sum(one["regions"] * one["images"] for one in found) / total,
        "pixels": sum(one["pixels"] * one["images"] for one in found) / total,
        "ceiling": sum(one["ceiling"] * one["images"] for one in found) / total,
        "sites": sites,
    }


def shap_dice(
    predict: Predict, images: Rows, background: Rows, lesions: Mask, *, samples: int = 512
) -> Dice:
    """ "SHAP Dice" of a model: Kernel SHAP of every image with a lesion, then `mean_pointing`.

    ``images`` are rows of pixels, ``lesions`` their masks (images x rows x columns); regions are
    those of the fixed grid.

    >>> from suture.explain.regions import grid
    >>> zone = grid(16).mask("left lower zone")
    >>> image = np.where(zone, 1, 0).astype(np.float32).reshape(1, -1)
    >>> def reads_the_zone(rows):
    ...     return 1 / (1 + np.exp(-3 * rows[:, zone.ravel()].mean(axis=1)))
    >>> shap_dice(reads_the_zone, image, np.zeros(256, np.float32), zone[None])["regions"]
    1.0
    """
    regions, ill = grid(lesions.shape[1]), lesions.any(axis=(1, 2))
    values = explain_images(predict, images[ill], background, regions, samples=samples)
    return mean_pointing(values, lesions[ill], regions)


def mean_pointing(values: Floats, lesions: Mask, regions: Regions) -> Dice:
    """Means over the images that have a lesion; ``lesions`` is images x rows x columns."""
    ill = np.flatnonzero(lesions.any(axis=(1, 2)))
    if not len(ill):
        raise DataError("no image has an annotated lesion, so no Dice can be measured")
    found = [pointing(values[i], lesions[i], regions) for i in ill]
    return {
        "images": len(found),
        "regions": float(np.mean([item.regions for item in found])),
        "pixels": float(np.mean([item.pixels for item in found])),
        "ceiling": float(np.mean([item.ceiling for item in found])),
    }


def pointing(values: Floats, lesion: Mask, regions: Regions) -> Pointing:
    """Top regions of one image against its lesion mask (rows x columns)."""
    if lesion.shape != regions.index.shape or not lesion.any():
        raise DataError(
            f"expected a lesion mask of {regions.size} x {regions.size} pixels with a lesion in it"
        )
    count = len(regions.names)
    inside = np.bincount(regions.index[lesion], minlength=count)
    wanted = np.flatnonzero(inside / lesion.sum() >= HOLDS)
    order = np.argsort(-values, kind="stable")[: len(wanted)]
    named = order[values[order] > 0]
    shared = len(set(wanted.tolist()) & set(named.tolist()))
    # The best union of regions takes the densest first, up to some number of them.
    area = np.maximum(np.bincount(regions.index.ravel(), minlength=count), 1)
    dense = np.argsort(-inside / area, kind="stable")
    unions = 2 * np.cumsum(inside[dense]) / (lesion.sum() + np.cumsum(area[dense]))
    return Pointing(
        regions=2 * shared / (len(wanted) + len(named)),
        pixels=dice(np.isin(regions.index, named), lesion),
        ceiling=float(unions.max()),
        wanted=tuple(regions.names[i] for i in wanted),
        named=tuple(regions.names[i] for i in named),
    )


def dice(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Dice of two masks: 2 |a and b| / (|a| + |b|); 1 where both are empty."""
    total = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / total if total else 1.0


def _notes(site: str | None, images: int) -> list[str]:
    whose = (
        "The patients are generated. Real hospitals make this page each for itself (--site); it "
        "must not leave them."
    )
    if site:
        whose = f"For {site} only: these figures are computed from its patients and stay there."
    return [
        f"Mean absolute Kernel SHAP value (log odds, {QUICK_SAMPLES} sets of regions) over up to "
        f"{images} images of each hospital, held-out ones where there are any, with that "
        "hospital's own model where the method has one.",
        "A region that is left out shows the mean image of that hospital's own training patients. "
        "Regions are a fixed grid for upright frontal views, the same for all images.",
        "A large weight in a corner means that predictions move with something that is not the "
        "patient. It does not say what it is, nor that the prediction is wrong: look at the "
        "images.",
        whose,
    ]


def weights_table(hospitals: Sequence[str], names: Sequence[str], weights: Floats) -> Table:
    """Mean absolute value of each region at each hospital (hospitals x regions)."""
    rows = [
        [hospital, *(f"{100 * part:.0f}" for part in shares), f"{sizes.sum():.2f}"]
        for hospital, shares, sizes in zip(hospitals, _shares(weights), weights, strict=True)
    ]
    heads = ("Hospital", *map(_narrow, names), "log odds")
    remark = (
        "Percent of the hospital's weight; last, all its weight in log odds. R and L are the "
        "patient's right and left."
    )
    return replace(plain("Weight of each region at each hospital", heads, rows), remark=remark)


def _narrow(name: str) -> str:
    short = {"mediastinum": "mediast.", "chest wall, neck and abdomen": "else- where"}
    return short.get(name, name.replace("right ", "R ").replace("left ", "L ").replace(" zone", ""))


def _dice_table(found: SiteDice) -> Table:
    """Dice of top regions and lesions at each hospital and over all."""
    rows = []
    for name, one in (*found["sites"].items(), ("all", found)):
        figures = (one["regions"], one["pixels"], one["ceiling"])
        rows.append([name, str(one["images"]), *(f"{figure:.2f}" for figure in figures)])
    remark = (
        "Regions: top regions against those with the lesion. Pixels: theirs against the lesion's, "
        "at most the ceiling."
    )
    heads = ("Hospital", "Images with lesion", "Dice, regions", "Dice, pixels", "Ceiling, pixels")
    return replace(plain("Do values point at lesions?", heads, rows), remark=remark)


def weights_map(hospitals: Sequence[str], names: Sequence[str], weights: Floats) -> Figure:
    """The same as a map of one colour."""
    share = _shares(weights)
    cells = [
        {"hospital": hospital, "region": name, "share": float(part), "text": f"{100 * part:.0f}"}
        for hospital, parts in zip(hospitals, share, strict=True)
        for name, part in zip(names, parts, strict=True)
    ]
    slanted = alt.Axis(labelAngle=-45, labelLimit=220)
    x = alt.X("region:N", sort=list(names), title=None, axis=slanted)
    y = alt.Y("hospital:N", sort=list(hospitals), title=None)
    base = alt.Chart(table(cells)).encode(x=x, y=y)
    top = float(share.max())
    colours = ["#ffffff", "#f0b85a", "#8a3b00"]
    scale = alt.Scale(domain=[0, top / 2, top], range=colours, interpolate="rgb")
    legend = alt.Legend(format=".0%")
    colour = alt.Color("share:Q", scale=scale, title="Share of weight", legend=legend)
    ink = alt.condition(f"datum.share > {0.6 * top}", alt.value("#ffffff"), alt.value(INK))
    tiles = base.mark_rect(stroke="#e3e6ea").encode(color=colour)
    texts = base.mark_text(fontSize=12).encode(text="text:N", color=ink)
    chart = alt.layer(tiles, texts).properties(width=44 * len(names), height=30 * len(hospitals))
    words = "Share of each hospital's mean absolute region values, in percent"
    return finish(chart, "Where predictions come from", words)
