"""`suture explain --regions`: where a model looks at each hospital, and whether it points at lesions.

Many images of each hospital are explained, so that a model that reads a scanner's marker is seen to. On the generated
cohort `radiographs`, whose lesions are known, the Dice of top regions and lesions is measured too (paper 004). Both are
exact figures from rows, which is why several hospitals together are for generated patients only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import places, world
from suture.cohorts.radiographs import truth
from suture.errors import StudyError
from suture.explain_image import QUICK_SAMPLES, Trained
from suture.explanation.background import mean_image
from suture.explanation.lesions import shap_dice
from suture.explanation.regions import CORNERS, grid
from suture.explanation.shapley import explain_images
from suture.site.cohort import SiteData

MARKED = 1.5
"""A corner is named from so many equal shares of the weight on."""


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
    lesions_known = run.study.cohort is not None and run.study.cohort.name == "radiographs"
    dice = _dice(run, places, images) if lesions_known else None
    facts = _facts(run, site, images, findings, dice)
    target = out or folder / "explanations"
    target.mkdir(parents=True, exist_ok=True)
    stem = f"regions-{site}" if site else "regions"
    page, figure = target / f"{stem}.html", target / f"{stem}.png"
    put(image_page.hospitals_page(regions.names, names, found, facts), page)
    save(image_page.hospitals_chart(regions.names, names, found), figure)
    return {
        "page": str(page),
        "picture": str(figure),
        "dice": dice,
        "regions": list(regions.names),
        "weights": {name: row.tolist() for name, row in zip(names, found, strict=True)},
        "findings": findings,
    }


def marked_corners(hospitals: Sequence[str], names: Sequence[str], weights: NDArray[np.float64]) -> list[str]:
    """Corners with over one and a half equal shares of a hospital's weight, in sentences.

    At just an equal share every other hospital would be named for chance, and who is meant would be lost among them.

    >>> marked_corners(["a", "b"], ["heart", "left top corner"], np.array([[1.0, 4.0], [9.0, 1.0]]))
    ['left top corner: 80 % of the weight at a; elsewhere at most 10 %, an equal share would be 50 %']
    """
    share = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    findings = []
    for j, name in enumerate(names):
        if name not in CORNERS:
            continue
        over = [i for i in np.argsort(-share[:, j], kind="stable") if share[i, j] > MARKED / len(names)]
        rest = [float(share[i, j]) for i in range(len(hospitals)) if i not in over]
        if over:
            told = ", ".join(f"{100 * share[i, j]:.0f} % of the weight at {hospitals[i]}" for i in over)
            low = f"; elsewhere at most {100 * max(rest):.0f} %" if rest else ""
            findings.append(f"{name}: {told}{low}, an equal share would be {100 / len(names):.0f} %")
    return findings


def _facts(
    run: Trained, site: str | None, images: int, findings: list[str], dice: dict[str, Any] | None
) -> dict[str, Any]:
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
        "dice": dice,
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


def lesion_dice(
    folder: str | Path, *, images: int = 20, seed: int = 0, piece: str | None = None, samples: int = QUICK_SAMPLES
) -> dict[str, Any]:
    """Paper 004's "SHAP Dice" of a run on `radiographs`: each hospital's model on its own test images with a lesion.

    ``seed`` counts the run's seeds from 0; each has its own generated patients and its own model. ``piece`` is a part of an
    ensemble, such as "global model".
    """
    run = Trained.open(Path(folder).resolve(), seed)
    if run.study.cohort is None or run.study.cohort.name != "radiographs":
        raise StudyError("lesions are known for the generated cohort radiographs only")
    return _dice(run, list(run.here.places), images, piece, samples)


def _dice(
    run: Trained,
    places: Sequence[places.Place],
    images: int,
    piece: str | None = None,
    samples: int = QUICK_SAMPLES,
) -> dict[str, Any]:
    options = {"images": 500, **(run.study.cohort.options() if run.study.cohort else {})}
    share = float(options.get("test_fraction", run.study.evaluation.holdout))
    numbers = {place.name: i for i, place in enumerate(run.here.places)}
    sites: dict[str, dict[str, float | int]] = {}
    for place in places:
        known = truth(
            run.here.seed,
            numbers[place.name],
            images=int(options["images"]),
            size=run.size,
            test_fraction=share,
        ).masks.lesions
        table = place.test if isinstance(place.test, dict) else {}
        ill = np.flatnonzero(known.any(axis=(1, 2)))[:images]
        if not len(ill) or "image" not in table:
            continue
        x = np.asarray(table["image"][ill], np.float32).reshape(len(ill), -1) / np.float32(255)
        background = mean_image(world.load_site(run.study, run.here, place).train.x)
        sites[place.name] = shap_dice(run.predict(place.name, piece=piece), x, background, known[ill], samples=samples)
    if not sites:
        raise StudyError("no test image of this run has a lesion; give evaluation.holdout more images")
    total = sum(int(found["images"]) for found in sites.values())
    mean = {
        key: sum(float(found[key]) * int(found["images"]) for found in sites.values()) / total
        for key in ("regions", "pixels", "ceiling")
    }
    return {"images": total, **mean, "sites": sites}
