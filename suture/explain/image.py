"""`suture explain --image`: which regions of one radiograph move a finished run's prediction.

The image is explained at its own site: the prediction with an interval and a value for every
region, as a page, a picture and a DICOM secondary capture. The site's rows are read for the
background and the calibration; what is written stays there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suture.engine import federation
from suture.engine.plan import World, method_of
from suture.errors import DataError, RunError, StudyError
from suture.evaluation.metrics import platt_fit
from suture.evaluation.significance import interval as t_interval
from suture.explain import image_page
from suture.explain.image_page import ImageExplanation, Interval, notes_of
from suture.explain.image_picture import LISTED, draw, png
from suture.explain.regions import BACKGROUNDS, Regions, blurred, from_masks, grid, mean_image
from suture.explain.run import (
    Answer,
    FinishedRun,
    Rows,
    calibrated_interval,
    file_stem,
    last_rows,
    place_of,
    sigmoid,
)
from suture.explain.shapley import SAMPLES, Predict, explain_image, log_odds
from suture.methods.base import Method, State
from suture.models.unet import load_weights
from suture.models.unet import masks as unet_masks
from suture.privacy.files import write_whole
from suture.schema.table import Image
from suture.site import gate
from suture.site.cohort import SiteData
from suture.site.dicom import patient_of, source_of, write_capture
from suture.site.images import BrokenImage, read_image

SHOWN = 512
"""Pixels per side of the radiograph in the picture; the model sees its own size."""
QUICK_SAMPLES = 512
"""Sets of regions that Kernel SHAP asks where the network is large or the images are many."""


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
        if world.class_count != 2:
            raise StudyError(
                f"regions explain one risk, but this study has {world.class_count} outcomes"
            )
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
    if data is not None:
        interval: Interval | str = _calibrated(predict, data, values.log_odds)
    else:
        interval = _over_seeds(run, pixels)
    notes += notes_of(values, pixels)
    found = ImageExplanation(values, regions, BACKGROUNDS[kind], interval, notes)
    return _write(run, found, shown, image, site, identify, out or run.run.folder / "explanations")


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
    title = image_page.headline(found, run.run.outcome)
    subtitle = f"{where} · {run.run.record['name']} · {run.run.label}"
    note = f"Background: {found.background}. Not for diagnosis."
    full = draw(shown, found.regions, values.values, (title, subtitle, note))
    stem = file_stem(site or "image", image.stem)
    html, picture, capture = (target / f"{stem}.{kind}" for kind in ("html", "png", "dcm"))
    files = [picture.name, capture.name]
    page = image_page.page(found, run.run, (where, image.stem), png(full[:, :LISTED]), files)
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
    write_whole(html, page.encode())
    reach = found.interval if isinstance(found.interval, Interval) else None
    return {
        "page": str(html),
        "picture": str(picture),
        "capture": str(capture),
        "identified": identify,
        "risk": values.risk,
        "calibrated": reach.risk if reach else None,
        "interval": [reach.low, reach.high] if reach else None,
        "interval_words": found.interval_words,
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
    risk, (low, high) = calibrated_interval(logit, platt_fit(y, predict(x)))
    who = "training" if data.test is None else "held-out"
    words = (
        f"Calibrated on this site's own {len(y):,} {who} patients, kept at this site. The 95 % "
        "interval is what they leave open about the calibration; it does not say how far this one "
        "patient may differ."
    )
    return Interval(risk, low, high, words)


def _over_seeds(run: ImageRun, pixels: Rows) -> Interval | str:
    """The mean risk over the seeds' models with its 95 % interval, or why there is none."""
    count = len(run.models)
    if count < 3:
        return (
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
    return Interval(mean, low, high, words)
