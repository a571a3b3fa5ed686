"""`suture explain --image`: which regions of one radiograph move a finished run's prediction.

The image is explained at its own site: the prediction with an interval and a value for every
region, as a page, a picture and a DICOM secondary capture. The site's rows are read for the
background and the calibration; what is written stays there.

One raster serves the PNG, the page and the capture, so that all three show the same: the radiograph
with its regions, the same coloured by their values, and their list. Orange raises and blue lowers
the risk (Okabe and Ito's, told apart with any common colour blindness); every region also carries
its number in print, so nothing rests on colour. R and L stand where a radiologist expects them: the
patient's right is on the left.
"""

from __future__ import annotations

import base64
import io
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import altair as alt
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, zoom

from suture.engine import federation
from suture.engine.plan import World, method_of
from suture.errors import DataError, MissingExtra, RunError, StudyError
from suture.evaluation.metrics import platt_fit
from suture.evaluation.significance import interval as t_interval
from suture.explain.regions import (
    BACKGROUNDS,
    CORNERS,
    OUTSIDE,
    Mask,
    Regions,
    blurred,
    from_masks,
    grid,
    mean_image,
)
from suture.explain.run import (
    LOWERS,
    RAISES,
    Answer,
    FinishedRun,
    Floats,
    Rows,
    calibrated_interval,
    file_stem,
    last_rows,
    percent,
    place_of,
    sigmoid,
)
from suture.explain.shapley import (
    LEAST_RISK,
    SAMPLES,
    Predict,
    RegionValues,
    explain_image,
    log_odds,
)
from suture.methods.base import Method, State
from suture.models.unet import load_weights
from suture.models.unet import masks as unet_masks
from suture.privacy.files import write_whole
from suture.report.shell import fill
from suture.report.theme import INK, QUIET, Figure, finish, table
from suture.report.words import Table, plain, signed
from suture.schema.table import Image
from suture.site import gate
from suture.site.cohort import SiteData
from suture.site.dicom import patient_of, source_of, write_capture
from suture.site.images import BrokenImage, read_image

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw as Pen
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = Callable[[int], FreeTypeFont | ImageFont]

SHOWN = 512
"""Pixels per side of the radiograph in the picture; the model sees its own size."""
QUICK_SAMPLES = 512
"""Sets of regions that Kernel SHAP asks where the network is large or the images are many."""
NOTICED, WORTH = 3, 0.05
"""A corner among this many largest values is worth a warning if it moves the log odds by so much."""
ALMOST = 0.05
"""Log odds by which Kernel SHAP may differ from the exact values before it is worth a note."""
CAPTION = (
    "Change of the log odds by each region against the background; all bars together lead from the "
    "base to the risk."
)
Raster = NDArray[np.uint8]
PAPER = "#ffffff"
PANEL, MARGIN, LIST = 620, 28, 400
SECOND = 2 * MARGIN + PANEL
"""Where the coloured panel begins."""
LISTED = 3 * MARGIN + 2 * PANEL
HEAD, FOOT = 112, 66
STRONGEST = 0.62
"""Share of colour over grey in the region with the largest value: the radiograph stays visible
below."""
FAINT = 0.25
"""Log odds below which even the largest value is drawn pale: colour must not make much of
little."""
SHORT = {"chest wall, neck and abdomen": "chest wall, neck, abdomen"}
INSIDE = SHORT | dict.fromkeys(CORNERS, "corner")
"""Names inside the picture, where their place says the rest."""


@dataclass(frozen=True)
class ImageRun:
    """A finished run on images: its federation without rows, and the models of its seeds."""

    run: FinishedRun
    world: World
    method: Method
    models: list[tuple[State, dict[str, State]]]
    """For each seed: the server's state, and each site's own."""
    size: int

    @classmethod
    def open(cls, folder: str | Path, first: int = 0) -> ImageRun:
        """Read a run back, with the patients and models of its seeds from number ``first`` on."""
        run = FinishedRun.open(folder)
        study, name = run.study, run.method
        world = federation.survey(study, run.base, study.seed + first)
        images = [f for f in world.schema.features.values() if isinstance(f, Image)]
        if not images:
            raise StudyError(
                "this run's study has no image column; suture explain RUN --site S --patient ID is "
                "for tables"
            )
        if not world.target.two:
            raise StudyError("regions explain one risk, but this study's is another outcome")
        models = []
        for seed in range(study.seed + first, study.seed + study.evaluation.seeds):
            found = run.kept.load(f"{name}-{seed}")
            if found is not None and found[2] is not None:
                models.append((found[0].state, found[1]))
        if not models:
            raise RunError(
                f"{run.folder} keeps no checkpoint of {name}, so its models cannot be asked; run "
                "the study again"
            )
        return cls(run, world, method_of(study, world, name), models, images[0].size)

    def predict(self, site: str, seed: int = 0, piece: str | None = None) -> Predict:
        """The model as a site computes it, ensembles included; "" is a site that did not take part.

        ``piece`` is one part of an ensemble by its name there, such as "global model".
        """
        (state, every), method = self.models[seed], self.method
        if every and site not in every:
            why = f"site {site!r} has none" if site else "name one with --site"
            raise StudyError(
                f"the hospitals of this run ({method.label}) have models of their own; {why}"
            )
        own = every.get(site, {})
        if piece is None:
            return lambda rows: method.predict(
                state, own, np.ascontiguousarray(rows, np.float32), site
            )
        none = np.zeros((0, self.size**2), np.float32)
        if piece not in method.parts(state, own, none, site):
            raise StudyError(f"{method.label} is not an ensemble, so it has no part {piece!r}")
        return lambda rows: method.parts(state, own, rows, site)[piece]

    def rows_of(self, site: str) -> SiteData:
        """A site's own rows."""
        return federation.load_site(self.run.study, self.world, place_of(self.world, site))


class Interval(NamedTuple):
    """A risk with its 95 % interval, and where these come from and what they leave out; or only why
    there is none."""

    words: str
    risk: float | None = None
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class ImageExplanation:
    """Everything that the page shows about one radiograph. It is about one patient, and for that
    patient's clinicians at that site."""

    values: RegionValues
    regions: Regions
    background: str
    """In words; values against another background are other values."""
    interval: Interval
    notes: tuple[str, ...]

    @property
    def risk(self) -> float:
        """The calibrated risk where the site's patients gave one, else the model's."""
        return self.values.risk if self.interval.risk is None else self.interval.risk

    @property
    def between(self) -> str:
        """The interval as text; empty where there is none."""
        return " to ".join(map(percent, self.interval.ends or ()))

    @property
    def ordered(self) -> list[tuple[str, float]]:
        """Regions and values, largest first by size."""
        order = np.argsort(-np.abs(self.values.values), kind="stable")
        return [(self.values.names[i], float(self.values.values[i])) for i in order]


def explain_file(
    folder: str | Path,
    *,
    image: Path,
    site: str | None = None,
    unet: Path | None = None,
    background: str | None = None,
    identify: bool = False,
    quick: bool = False,
    out: Path | None = None,
) -> Answer:
    """Explain one image file; writes a page, a picture and a secondary capture, all or none."""
    if background not in (None, *BACKGROUNDS) or (background == "site" and site is None):
        raise StudyError(
            f"--background: expected one of {', '.join(BACKGROUNDS)}, and site needs --site; found "
            f"{background!r}"
        )
    run = ImageRun.open(folder)
    if site is not None:
        place_of(run.world, site)
        _refuse_erased(run, site, image)
    pixels, shown = (_read(image, size) for size in (run.size, max(SHOWN, run.size)))
    data = run.rows_of(site) if site is not None else None
    regions, notes = _regions(pixels, unet)
    kind = background or ("site" if data is not None else "blur")
    flat = pixels.reshape(-1)
    absent = mean_image(data.train.x) if kind == "site" and data is not None else blurred(flat)
    samples = QUICK_SAMPLES if quick else SAMPLES
    predict = run.predict(site or "")
    values = explain_image(predict, flat, absent, regions, samples=samples, enumerate_all=not quick)
    interval = _calibrated(predict, data, values.log_odds) if data else _over_seeds(run, pixels)
    notes += notes_of(values, pixels)
    found = ImageExplanation(values, regions, BACKGROUNDS[kind], interval, notes)
    return _write(run, found, shown, image, site, identify, out or run.run.explanations)


def _write(
    run: ImageRun,
    found: ImageExplanation,
    shown: Rows,
    image: Path,
    site: str | None,
    identify: bool,
    target: Path,
) -> Answer:
    where, values = site or "no site named", found.values
    outcome = run.run.outcome
    title = f"{outcome[:1].upper()}{outcome[1:]}: {percent(found.risk)}"
    title += f" (95 % interval {found.between})" if found.between else ""
    subtitle = f"{where} · {run.run.record['name']} · {run.run.label}"
    note = f"Background: {found.background}. Not for diagnosis."
    full = draw(shown, found.regions, values.values, (title, subtitle, note))
    stem = file_stem(site or "image", image.stem)
    html, picture, capture = (target / f"{stem}.{kind}" for kind in ("html", "png", "dcm"))
    files = [picture.name, capture.name]
    text = page(found, run.run, (where, image.stem), png(full[:, :LISTED]), files)
    largest = "; ".join(f"{region} {value:+.2f}" for region, value in found.ordered[:5])
    home = place_of(run.world, site).home if site is not None else None
    target.mkdir(parents=True, exist_ok=True)
    write_capture(
        full,
        capture,
        source=source_of(image),
        identified=identify,
        series="Suture region values, not for diagnosis",
        comment=f"{title}. Log odds by region: {largest}",
        secret=gate.site_secret(home) if home is not None else None,
    )
    write_whole(picture, png(full))
    write_whole(html, text.encode())
    return {
        "page": str(html),
        "picture": str(picture),
        "capture": str(capture),
        "identified": identify,
        "risk": values.risk,
        "calibrated": found.interval.risk,
        "interval": found.interval.ends and list(found.interval.ends),
        "interval_words": found.interval.words,
        "log_odds": values.log_odds,
        "base": values.base,
        "regions": [
            {"name": name, "value": float(value), "kernel_shap": float(kernel)}
            for name, value, kernel in zip(values.names, values.values, values.kernel, strict=True)
        ],
        "exact": values.exact,
        "kernel_shap_difference": values.difference,
        "additivity_error": values.leftover,
        "background": found.background,
        "regions_from": found.regions.source,
        "notes": list(found.notes),
    }


def _read(path: Path, size: int) -> Rows:
    try:
        return read_image(path, size)
    except BrokenImage as error:
        raise DataError(f"--image {path.name}: {error}") from None


def _refuse_erased(run: ImageRun, site: str, image: Path) -> None:
    """Whoever is erased or withdrew at the site is not explained there; a file without an
    identifier cannot be checked."""
    admission = run.world.admissions.get(site)
    if admission is None or not image.is_file():
        return
    patient = patient_of(image)
    if patient is not None and not admission.passage.allows(patient):
        raise DataError(
            f"--image: the patient of this file is erased, or withdrew, at site {site!r}; it is "
            "not explained"
        )


def _regions(pixels: Rows, unet: Path | None) -> tuple[Regions, tuple[str, ...]]:
    if unet is None:
        return grid(len(pixels)), ()
    weights = load_weights(unet)
    try:
        return from_masks(unet_masks(weights, pixels)), ()
    except DataError as error:
        words = f"The U-Net's masks were not used: {error}. The fixed grid was used instead."
        return grid(len(pixels)), (words,)


def _calibrated(predict: Predict, data: SiteData, logit: float) -> Interval:
    """The risk calibrated on the site's patients, with the 95 % interval of that calibration."""
    x, y = last_rows(data.train if data.test is None else data.test)
    who = "training" if data.test is None else "held-out"
    words = (
        f"Calibrated on this site's own {len(y):,} {who} patients, kept at this site. The 95 % "
        "interval is what they leave open about the calibration; it does not say how far this one "
        "patient may differ."
    )
    return Interval(words, *calibrated_interval(logit, platt_fit(y, predict(x))))


def _over_seeds(run: ImageRun, pixels: Rows) -> Interval:
    """The mean risk over the seeds' models with its 95 % interval, or why there is none."""
    count = len(run.models)
    if count < 3:
        return Interval(
            "Without an interval: no site was named, on whose patients to calibrate (--site), and "
            "the run has fewer than three seeds to compare."
        )
    row = pixels.reshape(1, -1)
    logits = [float(log_odds(run.predict("", seed)(row))[0]) for seed in range(count)]
    mean, low, high = (sigmoid(0.0 if end is None else end) for end in t_interval(logits))
    words = (
        f"Mean over the models of {count} seeds, with the 95 % interval of that mean: what chance "
        "in training leaves open. Not calibrated on any site's patients; name the site with --site "
        "for that. Regions explain the first seed's model."
    )
    return Interval(words, mean, (low, high))


def outside_share(values: Floats, names: tuple[str, ...]) -> float:
    """Share of the total weight (absolute values) in regions without lung, heart or great
    vessels."""
    sizes = np.abs(values)
    outside = np.array([name in OUTSIDE for name in names])
    return float(sizes[outside].sum() / max(float(sizes.sum()), 1e-300))


def notes_of(found: RegionValues, pixels: Rows) -> tuple[str, ...]:
    """What a reader should know before trusting the values, in sentences."""
    notes = []
    order = np.argsort(-np.abs(found.values), kind="stable")[:NOTICED]
    large = [found.names[i] for i in order if abs(found.values[i]) > WORTH]
    if corners := [name for name in large if name in CORNERS]:
        notes.append(
            f"The {' and the '.join(corners)} of the image {'is' if len(corners) == 1 else 'are'} "
            f"among the {NOTICED} regions with the largest values. No organ is there: the model "
            "may be reading a marker, a label or the scanner."
        )
    share = outside_share(found.values, found.names)
    if share > 0.5:
        notes.append(f"{share:.0%} of the weight lies outside lungs, heart and mediastinum.")
    if not LEAST_RISK * 2 < found.risk < 1 - LEAST_RISK * 2:
        notes.append(
            "The model is saturated here (risk below 0.0002 % or above 99.9998 %): values are cut "
            "off."
        )
    if found.difference is not None and found.difference > ALMOST:
        notes.append(
            f"Kernel SHAP with {found.samples:,} sets differs from the exact values by up to "
            f"{found.difference:.2f}: regions act together here, so a single region's value says "
            "less."
        )
    if math.isclose(float(pixels.min()), float(pixels.max()), abs_tol=1e-6):
        notes.append("The image is one flat grey: nothing in it can be explained.")
    return tuple(notes)


def page(
    found: ImageExplanation,
    run: FinishedRun,
    where: tuple[str, str],
    picture: bytes,
    files: Sequence[str],
) -> str:
    """The page as text, with the picture inside; ``where`` is the site and the image's name."""
    site, name = where
    context = {
        "found": found, "run": run, "image": name, "site": site, "table": _table(found),
        "picture": base64.b64encode(picture).decode(), "files": files,
        "percent": percent, "sigmoid": sigmoid, "signed": signed,
    }  # fmt: skip
    charts, captions = {"values": _chart(found)}, {"values": CAPTION}
    return fill("image.html", context, charts, captions, f"{site}-{name}")


def _table(found: ImageExplanation) -> Table:
    """Regions and their values, largest first; the last column only where exact values are known."""
    kernel = dict(zip(found.values.names, found.values.kernel, strict=True))
    rows = [
        (name, signed(value), f"× {math.exp(value):.2f}", signed(kernel[name]))
        for name, value in found.ordered
    ]
    kind, columns = ("exact Shapley values", 4) if found.values.exact else ("Kernel SHAP", 3)
    heads = ("Region", "Log odds", "Odds", "Kernel SHAP")[:columns]
    shown = plain(f"Values of all regions ({kind})", heads, [row[:columns] for row in rows])
    return replace(shown, remark="Sides are the patient's.")


def _chart(found: ImageExplanation) -> Figure:
    """Values as bars, largest first."""
    rows = [
        {"region": name, "value": value, "what": "raises" if value > 0 else "lowers", "text": signed(value, 2)}
        for name, value in found.ordered
    ]  # fmt: skip
    names = alt.Axis(labelLimit=260, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("region:N", sort=[name for name, _ in found.ordered], title=None, axis=names)
    reach = max(float(np.abs(found.values.values).max()), 1e-3) * 1.25
    domain = alt.Scale(domain=[-reach, reach], nice=False)
    x = alt.X("value:Q", title="Change of the log odds", scale=domain)
    colours = alt.Scale(domain=["raises", "lowers"], range=[RAISES, LOWERS])
    base, colour = alt.Chart(table(rows)), alt.Color("what:N", scale=colours, legend=None)
    bars = base.mark_bar(height=16).encode(x=x, y=y, color=colour)
    up = base.transform_filter("datum.value > 0").mark_text(align="left", dx=5)
    down = base.transform_filter("datum.value <= 0").mark_text(align="right", dx=-5)
    words = {"text": "text:N", "size": alt.value(12), "color": alt.value(INK)}
    texts = [text.encode(x=x, y=y, **words) for text in (up, down)]
    chart = alt.layer(bars, *texts).properties(width=560, height=alt.Step(26))
    subtitle = "Orange raises, blue lowers the risk"
    return finish(chart, "Which regions move this prediction", subtitle)


def draw(image: Rows, regions: Regions, values: Floats, words: tuple[str, str, str]) -> Raster:
    """The picture, rows x columns x 3: ``image`` is square, from 0 to 1, of any size; ``words`` are
    title, subtitle and note.

    Columns from `LISTED` on are the list of regions, which a page leaves out because it has one of
    its own.
    """
    try:
        from PIL import Image, ImageColor, ImageDraw, ImageFont
    except ImportError:
        need = "heat maps are drawn with Pillow: pip install 'suture[imaging]'"
        raise MissingExtra(need) from None
    sheet = Image.new("RGB", (LISTED + LIST + MARGIN, HEAD + PANEL + FOOT), PAPER)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default
    over = partial(pen.text, fill=PAPER, stroke_width=2, stroke_fill=INK)
    title, subtitle, note = (_drawable(text) for text in words)
    pen.text((MARGIN, 22), title, font=font(30), fill=INK)
    pen.text((MARGIN, 66), subtitle, font=font(18), fill=QUIET)
    order = 1 if len(image) > PANEL // 2 else 3
    grey = np.clip(_zoomed(np.asarray(image, np.float64), order), 0, 1) * 255
    # The region whose smoothed mask is largest, so that edges have no steps.
    masks = regions.masks.reshape(-1, regions.size, regions.size)
    index = np.argmax(np.stack([_zoomed(mask, 1) for mask in masks]), axis=0)
    edges = _edges(index)
    reach = max(float(np.abs(values).max()), FAINT)
    plain = np.repeat(grey[:, :, None], 3, axis=2)
    share = (STRONGEST * np.abs(values) / reach)[index][:, :, None]
    colours = [ImageColor.getrgb(RAISES if value > 0 else LOWERS) for value in values]
    coloured = (1 - share) * plain + share * np.array(colours, float)[index]
    for left, raster, light in ((MARGIN, plain, 0.45), (SECOND, coloured, 0.6)):
        raster[edges] = (1 - light) * raster[edges] + light * 255
        sheet.paste(Image.fromarray(np.asarray(np.rint(raster), np.uint8)), (left, HEAD))
        for side, edge in (("R", left + 8), ("L", left + PANEL - 24)):
            over((edge, HEAD + PANEL // 2 - 14), side, font=font(24))
    for number, name in enumerate(regions.names):
        row, column = _label_place(index == number)
        text = INSIDE.get(name, name)
        half = pen.textlength(text, font=font(18)) / 2 + 5  # labels stay inside the panel
        middle = SECOND + min(max(column, half), PANEL - half)
        for word, size, below in ((text, 18, -11), (f"{values[number]:+.2f}", 21, 11)):
            over((middle, HEAD + row + below), word, font=font(size), anchor="mm")
    _list(pen, font, regions.names, values, reach)
    first = "The radiograph and its regions. Sides are the patient's: their left is on the right."
    second = "Orange raises, blue lowers the risk; numbers are changes of the log odds."
    for left, down, text in ((MARGIN, 12, first), (SECOND, 12, second), (MARGIN, 37, note)):
        pen.text((left, HEAD + PANEL + down), text, font=font(17), fill=QUIET)
    return np.asarray(sheet, np.uint8)


def png(raster: Raster) -> bytes:
    """A drawn raster as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(raster).save(buffer, format="PNG", compress_level=4)
    return buffer.getvalue()


def _drawable(text: str) -> str:
    """What Pillow's own font can draw: accents are dropped here (and kept on the page).

    >>> _drawable("São José, site β")
    'Sao Jose, site ?'
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if c.isascii() or c == "·" else "?" for c in plain)


def _zoomed(array: Floats | Rows, order: int) -> Floats:
    return np.asarray(zoom(array, PANEL / len(array), order=order, mode="nearest", grid_mode=True))


def _edges(index: NDArray[np.intp]) -> Mask:
    found = np.zeros(index.shape, bool)
    found[:-1] |= index[:-1] != index[1:]
    found[:, :-1] |= index[:, :-1] != index[:, 1:]
    found[1:] |= found[:-1]
    return found


def _label_place(mask: Mask) -> tuple[int, int]:
    """Row and column where the label has most room: widest first, because text is."""
    if not mask.any():
        return 0, 0
    room = distance_transform_edt(np.pad(mask, 1), sampling=(2.2, 1.0))[1:-1, 1:-1]
    rows, columns = np.nonzero(room >= room.max() - 0.75)
    middle = np.argmin((rows - np.median(rows)) ** 2 + (columns - np.median(columns)) ** 2)
    return int(rows[middle]), int(columns[middle])


def _list(pen: Pen, font: Font, names: tuple[str, ...], values: Floats, reach: float) -> None:
    """Regions by size of their value, with bars from a common middle."""
    step = min(40, (PANEL - 34) // len(names))
    pen.text((LISTED, HEAD), "Regions, largest value first", font=font(17), fill=INK)
    zero, half = LISTED + 316, 62
    for line, number in enumerate(np.argsort(-np.abs(values), kind="stable")):
        top, value = HEAD + 36 + line * step, float(values[number])
        if top + step > HEAD + PANEL + 4:
            break
        pen.text((LISTED, top), SHORT.get(names[number], names[number]), font=font(16), fill=INK)
        ends = sorted((zero, zero + half * value / reach))
        bar = (ends[0], top + 3, ends[1], top + 18)
        pen.rectangle(bar, fill=RAISES if value > 0 else LOWERS)
        pen.text((LISTED + 246, top), f"{value:+.2f}", font=font(16), fill=INK, anchor="ra")
    pen.line((zero, HEAD + 34, zero, HEAD + 36 + step * len(names) - 12), fill=QUIET)
