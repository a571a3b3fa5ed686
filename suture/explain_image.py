"""`suture explain --image` and `--regions`: which regions of radiographs move a finished run's predictions.

One image is explained at its own site: the prediction with an interval, a value for every region, as a page, a picture and
a DICOM secondary capture. `--regions` looks at many images of each hospital and shows where predictions come from, so
that a model that reads a scanner's marker is seen to. Both read rows exactly; what they write about real patients stays at
the site, which is why `--regions` over several hospitals is for generated patients only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import world
from suture.errors import DataError, RunError, StudyError
from suture.evaluation.calibration import platt_fit
from suture.evaluation.significance import interval as t_interval
from suture.explanation.background import WORDS, blurred, mean_image
from suture.explanation.image import ImageExplanation, Interval, notes_of
from suture.explanation.patient import calibrated_interval, sigmoid
from suture.explanation.regions import CORNERS, Regions, from_masks, grid
from suture.explanation.shapley import SAMPLES, Predict, explain_image, explain_images, log_odds
from suture.methods.base import Method, State
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
"""Sets of regions that Kernel SHAP looks at for one of many images; means over images smooth the rest."""


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
    def open(cls, folder: Path) -> Trained:
        """Read a run back; an error says what is missing."""
        result = Result.load(folder)
        kept, study, base = RunFolder.open(folder)
        name = str(result.data["method"])
        here = world.survey(study, base, study.seed)
        images = [feature for feature in here.schema.features.values() if isinstance(feature, Image)]
        if not images:
            raise StudyError(
                "this run's study has no image column; suture explain RUN --site S --patient ID is for tables"
            )
        if here.class_count != 2:
            raise StudyError(f"regions explain one risk; this study tells {here.class_count} outcomes apart")
        models = []
        for seed in range(study.seed, study.seed + study.evaluation.seeds):
            found = kept.load(f"{name}-{seed}")
            if found is not None and found[2] is not None:
                models.append((found[0].state, found[1]))
        if not models:
            raise RunError(f"{folder} keeps no checkpoint of {name}; its models cannot be asked. Run the study again")
        return cls(result, study, here, world.method_of(study, here, name), models, images[0].size)

    def predict(self, site: str, seed: int = 0) -> Predict:
        """The model as a site computes it, ensembles included; "" is a site that did not take part."""
        state, own = self.models[seed]
        if own and site not in own:
            why = f"site {site!r} has none" if site else "name one with --site"
            raise StudyError(f"the hospitals of this run ({self.method.label}) have models of their own; {why}")
        return lambda rows: self.method.predict(state, own.get(site, {}), np.ascontiguousarray(rows, np.float32), site)

    def place(self, site: str) -> world.Place:
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
    secret = world.site_secret(home) if home is not None else None
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


def explain_hospitals(
    folder: str | Path,
    *,
    site: str | None = None,
    images: int = 20,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Mean absolute value of each region over some images of each hospital; writes one page and one figure."""
    from suture.report import image_page
    from suture.report.shell import put
    from suture.report.theme import save

    if images < 2:
        raise StudyError(f"--images: expected at least 2, found {images}")
    folder = Path(folder).resolve()
    run = Trained.open(folder)
    if site is None and not run.here.generated:
        raise StudyError(
            "means over real patients' images are computed from rows and may not leave their sites: name one with --site; "
            "its page stays there"
        )
    places = [run.place(site)] if site is not None else list(run.here.places)
    regions = grid(run.size)
    weights = []
    for number, place in enumerate(places, start=1):
        say(f"[{number}/{len(places)}] {place.name}")
        data = world.load_site(run.study, run.here, place)
        rows = _some(data, images, number)
        values = explain_images(run.predict(place.name), rows, mean_image(data.train.x), regions, samples=QUICK_SAMPLES)
        weights.append(np.abs(values).mean(axis=0))
    found = np.array(weights)
    names = [place.name for place in places]
    findings = marked_corners(names, regions.names, found)
    facts = _facts(run, site, images, findings)
    target = out or folder / "explanations"
    target.mkdir(parents=True, exist_ok=True)
    stem = f"regions-{site}" if site else "regions"
    page, figure = target / f"{stem}.html", target / f"{stem}.png"
    put(image_page.hospitals_page(regions.names, names, found, facts), page)
    save(image_page.hospitals_chart(regions.names, names, found), figure)
    return {
        "page": str(page),
        "picture": str(figure),
        "regions": list(regions.names),
        "weights": {name: row.tolist() for name, row in zip(names, found, strict=True)},
        "findings": findings,
    }


def marked_corners(hospitals: Sequence[str], names: Sequence[str], weights: NDArray[np.float64]) -> list[str]:
    """Corners with more than an equal share of a hospital's weight, in sentences.

    >>> marked_corners(["a", "b"], ["heart", "left top corner"], np.array([[1.0, 3.0], [9.0, 1.0]]))
    ['left top corner: 75 % of the weight at a; elsewhere at most 10 %, an equal share would be 50 %']
    """
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    findings = []
    for j, name in enumerate(names):
        if name not in CORNERS:
            continue
        over = [i for i in np.argsort(-share[:, j], kind="stable") if share[i, j] > 1 / len(names)]
        rest = [float(share[i, j]) for i in range(len(hospitals)) if i not in over]
        if over:
            told = ", ".join(f"{100 * share[i, j]:.0f} % of the weight at {hospitals[i]}" for i in over)
            low = f"; elsewhere at most {100 * max(rest):.0f} %" if rest else ""
            findings.append(f"{name}: {told}{low}, an equal share would be {100 / len(names):.0f} %")
    return findings


def _facts(run: Trained, site: str | None, images: int, findings: list[str]) -> dict[str, Any]:
    result = run.result.data
    whose = (
        f"For {site} only: these figures are computed from its patients and stay there."
        if site
        else "The patients are generated. Real hospitals make this page each for itself (--site); it must not leave them."
    )
    return {
        "study": result["name"],
        "intro": f"How much each region of an image moves {result['methods'][result['method']]['label']}'s prediction.",
        "findings": findings,
        "notes": [
            f"Mean absolute Kernel SHAP value (log odds, {QUICK_SAMPLES} sets of regions) over up to {images} images of each "
            "hospital, held-out ones where there are any, with that hospital's own model where the method has one.",
            "A region that is left out shows the mean image of that hospital's own training patients. Regions are a fixed grid "
            "for upright frontal views, the same for all images.",
            "A large weight in a corner means that predictions move with something that is not the patient. It does not say "
            "what it is, nor that the prediction is wrong: look at the images.",
            whose,
        ],
        "footer": [("Study", str(result["name"])), ("Method", str(result["method"]))],
    }


def _some(data: SiteData, count: int, seed: int) -> NDArray[np.float32]:
    rows = data.test.x if data.test is not None else data.train.x
    return rows[np.random.default_rng(seed).permutation(len(rows))[:count]]


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
