"""`suture explain --image`: which regions of one radiograph move a finished run's prediction.

The image is explained at its own site: the prediction with an interval, a value for every region, as a page, a picture and
a DICOM secondary capture. The site's rows are read for the background and the calibration; what is written stays there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import places, planning, world
from suture.errors import DataError, RunError, StudyError
from suture.evaluation.calibration import platt_fit
from suture.evaluation.significance import interval as t_interval
from suture.explanation.background import WORDS, blurred, mean_image
from suture.explanation.image import ImageExplanation, Interval, notes_of
from suture.explanation.patient import calibrated_interval, sigmoid
from suture.explanation.regions import Regions, from_masks, grid
from suture.explanation.shapley import SAMPLES, Predict, explain_image, log_odds
from suture.methods.base import Method, State
from suture.methods.ensemble import Ensemble
from suture.models.unet import load_weights
from suture.models.unet import masks as unet_masks
from suture.privacy.unit import Patients
from suture.result import Result
from suture.runfolder import RunFolder, write_whole
from suture.site.capture import patient_of, source_of, write_capture
from suture.site.cohort import SiteData
from suture.site.images import BrokenImage, read_image
from suture.site.schema import Image
from suture.study import Study

SHOWN = 512
"""Pixels a side of the radiograph in the picture; the model sees its own size."""
QUICK_SAMPLES = 512
"""Sets of regions that Kernel SHAP looks at where the network is large or the images are many."""


@dataclass
class Trained:
    """A finished run on images: its study, its federation without rows, and the models of its seeds."""

    result: Result
    study: Study
    here: world.World
    method: Method
    models: list[tuple[State, dict[str, State]]]
    """One a seed: the server's state, and each site's own."""
    size: int

    @classmethod
    def open(cls, folder: Path, first: int = 0) -> Trained:
        """Read a run back, with the patients and models of its seeds from number ``first`` on."""
        result = Result.load(folder)
        kept, study, base = RunFolder.open(folder)
        name = str(result.data["method"])
        here = world.survey(study, base, study.seed + first)
        images = [feature for feature in here.schema.features.values() if isinstance(feature, Image)]
        if not images:
            raise StudyError(
                "this run's study has no image column; suture explain RUN --site S --patient ID is for tables"
            )
        if here.class_count != 2:
            raise StudyError(f"regions explain one risk; this study tells {here.class_count} outcomes apart")
        models = []
        for seed in range(study.seed + first, study.seed + study.evaluation.seeds):
            found = kept.load(f"{name}-{seed}")
            if found is not None and found[2] is not None:
                models.append((found[0].state, found[1]))
        if not models:
            raise RunError(f"{folder} keeps no checkpoint of {name}; its models cannot be asked. Run the study again")
        return cls(result, study, here, planning.method_of(study, here, name), models, images[0].size)

    def predict(self, site: str, seed: int = 0, piece: str | None = None) -> Predict:
        """The model as a site computes it, ensembles included; "" is a site that did not take part.

        ``piece`` is one part of an ensemble by its name there, such as "global model".
        """
        state, own = self.models[seed]
        if own and site not in own:
            why = f"site {site!r} has none" if site else "name one with --site"
            raise StudyError(f"the hospitals of this run ({self.method.label}) have models of their own; {why}")
        if piece is not None:
            if not isinstance(self.method, Ensemble):
                raise StudyError(f"{self.method.label} is not an ensemble, so it has no part {piece!r}")
            ensemble = self.method
            return lambda rows: ensemble.parts(state, own.get(site, {}), rows, site)[piece]
        return lambda rows: self.method.predict(state, own.get(site, {}), np.ascontiguousarray(rows, np.float32), site)

    def place(self, site: str) -> places.Place:
        """A site by name."""
        found = next((place for place in self.here.places if place.name == site), None)
        if found is None:
            close = [place.name for place in self.here.places if site.casefold() in place.name.casefold()][:5]
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            raise StudyError(f"--site: the study has no site {site!r}{hint}")
        return found


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
) -> dict[str, Any]:
    """Explain one image file; writes a page, a picture and a secondary capture, all or none."""
    if background not in (None, *WORDS) or (background == "site" and site is None):
        raise StudyError(
            f"--background: expected one of {', '.join(WORDS)}, and site needs --site; found {background!r}"
        )
    folder = Path(folder).resolve()
    run = Trained.open(folder)
    place = run.place(site) if site is not None else None
    _may_be_explained(run, site, image)
    pixels, shown = (_read(image, size) for size in (run.size, max(SHOWN, run.size)))
    data = world.load_site(run.study, run.here, place) if place is not None else None
    predict = run.predict(site or "")
    regions, notes = _regions(pixels, unet)
    kind = background or ("site" if data is not None else "blur")
    absent = mean_image(data.train.x) if kind == "site" and data is not None else blurred(pixels.reshape(-1))
    samples = QUICK_SAMPLES if quick else SAMPLES
    found = explain_image(predict, pixels.reshape(-1), absent, regions, samples=samples, enumerate_all=not quick)
    interval, without = _interval(run, site, data, found.log_odds, pixels)
    told = ImageExplanation(found, regions, WORDS[kind], interval, without, (*notes, *notes_of(found, regions, pixels)))
    return _written(run, told, shown, image, site, identify, out or folder / "explanations")


def _written(
    run: Trained,
    found: ImageExplanation,
    shown: NDArray[np.float32],
    image: Path,
    site: str | None,
    identify: bool,
    target: Path,
) -> dict[str, Any]:
    from suture.report import image_page
    from suture.report.regions_picture import LISTED, draw, png

    result = run.result.data
    outcome = str(result["outcome"]).replace("_", " ")
    name, where = image.stem, site or "no site named"
    heading = (
        image_page.headline(found, outcome),
        f"{where} · {result['name']} · {result['methods'][result['method']]['label']}",
        f"Background: {found.background}. Not for diagnosis.",
    )
    full = draw(shown, found.regions, found.found.values, *heading)
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in f"{site or 'image'}-{name}")[:80]
    paths = {kind: target / f"{stem}.{kind}" for kind in ("html", "png", "dcm")}
    page = image_page.page(found, name, where, result, png(full[:, :LISTED]), [paths["png"].name, paths["dcm"].name])
    told = "; ".join(f"{region} {value:+.2f}" for region, value in found.ordered[:5])
    home = run.place(site).home if site is not None else None
    secret = places.site_secret(home) if home is not None else None
    target.mkdir(parents=True, exist_ok=True)
    write_capture(
        full,
        paths["dcm"],
        source=source_of(image),
        identified=identify,
        series="Suture region values, not for diagnosis",
        comment=f"{heading[0]}. Log odds by region: {told}",
        secret=secret,
    )
    write_whole(paths["png"], png(full))
    write_whole(paths["html"], page.encode())
    return {
        "page": str(paths["html"]),
        "picture": str(paths["png"]),
        "capture": str(paths["dcm"]),
        "identified": identify,
        "risk": found.found.risk,
        "calibrated": found.interval.risk if found.interval else None,
        "interval": [found.interval.low, found.interval.high] if found.interval else None,
        "interval_words": found.interval.words if found.interval else found.without,
        "log_odds": found.found.log_odds,
        "base": found.found.base,
        "regions": [
            {"name": region, "value": float(value), "kernel_shap": float(kernel)}
            for region, value, kernel in zip(found.found.names, found.found.values, found.found.kernel, strict=True)
        ],
        "exact": found.found.exact,
        "kernel_shap_difference": found.found.difference,
        "additivity_error": found.found.leftover,
        "background": found.background,
        "regions_from": found.regions.source,
        "notes": list(found.notes),
    }


def _read(path: Path, size: int) -> NDArray[np.float32]:
    try:
        return read_image(path, size).pixels
    except BrokenImage as error:
        raise DataError(f"--image {path.name}: {error}") from None


def _may_be_explained(run: Trained, site: str | None, image: Path) -> None:
    """Who is erased or withdrew at the site is not explained there; a file without an identifier cannot be checked."""
    admission = run.here.admissions.get(site) if site is not None else None
    if admission is None or not image.is_file():
        return
    patient = patient_of(image)
    if patient is not None and not admission.passage.allows(patient):
        raise DataError(
            f"--image: the patient of this file is erased, or withdrew, at site {site!r}; it is not explained"
        )


def _regions(pixels: NDArray[np.float32], unet: Path | None) -> tuple[Regions, tuple[str, ...]]:
    if unet is None:
        return grid(len(pixels)), ()
    try:
        return from_masks(unet_masks(load_weights(unet), pixels)), ()
    except DataError as error:
        if "U-Net weights" in str(error) or "other arrays" in str(error):
            raise
        return grid(len(pixels)), (f"The U-Net's masks were not used: {error}. The fixed grid was used instead.",)


def _interval(
    run: Trained, site: str | None, data: SiteData | None, logit: float, pixels: NDArray[np.float32]
) -> tuple[Interval | None, str]:
    """The 95 % interval: of the calibration on the site's patients, else over the seeds' models, else none."""
    if data is not None and site is not None:
        held_out = data.test is not None
        patients = data.test if data.test is not None else data.train
        x, y = _one_each(patients)
        scaling = platt_fit(y, run.predict(site)(x))
        risk, (low, high) = calibrated_interval(logit, scaling)
        who = f"{len(y):,} {'held-out' if held_out else 'training'} patients"
        words = (
            f"Calibrated on this site's own {who}, kept at this site. The 95 % interval is what they leave open about the "
            "calibration; it does not say how far this one patient may differ."
        )
        return Interval(risk, low, high, words), ""
    if len(run.models) >= 3:
        row = pixels.reshape(1, -1)
        logits = [float(log_odds(run.predict("", seed)(row))[0]) for seed in range(len(run.models))]
        mean, lowest, highest = t_interval(logits)
        words = (
            f"Mean over the models of {len(run.models)} seeds, with the 95 % interval of that mean: what chance in training "
            "leaves open. Not calibrated on any site's patients; name the site with --site for that. Regions explain the "
            "first seed's model."
        )
        if lowest is not None and highest is not None:
            return Interval(sigmoid(mean), sigmoid(lowest), sigmoid(highest), words), ""
    return None, (
        "Without an interval: no site was named, on whose patients to calibrate (--site), and the run has fewer than three "
        "seeds to compare."
    )


def _one_each(patients: Patients) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """A patient's last image stands for them: two images of one patient are not two patients."""
    last = patients.starts[1:] - 1
    return patients.x[last], patients.y[last]
