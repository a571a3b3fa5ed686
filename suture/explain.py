"""`suture explain`: one patient's risk by a finished run's model, explained at the patient's own site.

Reads the rows of that site only. Percentiles, calibration and the interval come from the site's own training patients and
stay on the page; the page is for the site's clinicians and says so. On request percentiles come from a histogram of the
federation that every site has released and paid for (`suture.percentiles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture import places, world
from suture.errors import DataError, RunError, StudyError
from suture.evaluation.calibration import platt_fit
from suture.explanation.patient import Explanation, Histogram, Named, explain
from suture.models.concepts import dictionary, label_of
from suture.percentiles import load_percentiles
from suture.result import Result
from suture.runfolder import RunFolder
from suture.site.cohort import SiteData, load
from suture.site.lookup import patient_rows
from suture.site.passage import Passage
from suture.site.rows import encode_rows
from suture.site.schema import Number, Schema
from suture.study import Study


def explain_patient(
    folder: str | Path,
    *,
    site: str,
    patient: str | None = None,
    row: Path | None = None,
    out: Path | None = None,
    percentiles: str = "site",
) -> dict[str, Any]:
    """Explain one patient of a site, by identifier or from a file with one row; writes a page and a picture."""
    if (patient is None) == (row is None):
        raise StudyError("give --patient ID, or --row FILE with one row: suture explain RUN --site S --patient ID")
    if percentiles not in ("site", "federation"):
        raise StudyError(f"--percentiles: expected site or federation, found {percentiles!r}")
    folder = Path(folder).resolve()
    result = Result.load(folder)
    if result.data["method"] != "veil":
        raise StudyError(f"explanations are exact for veil only; this run's method is {result.data['method']!r}")
    federation, words = load_percentiles(folder) if percentiles == "federation" else (None, "")
    _, study, base = RunFolder.open(folder)
    place, data, passage = _site(study, base, site)
    schema = Schema.parse(result.data["model"]["schema"])
    if row is not None:
        x = _from_file(row, schema)
    else:
        x = patient_rows(place.source, schema, str(patient), site=site, passage=passage)
    found = replace(_explain(result, schema, x[-1], data, federation), federation=words)
    from suture.report import patient as page

    name = patient if patient is not None else Path(str(row)).stem
    target = out or folder / "explanations"
    target.mkdir(parents=True, exist_ok=True)
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in f"{site}-{name}")[:80]
    html, png = target / f"{stem}.html", target / f"{stem}.png"
    page.write(found, name, site, result.data, html, png, rows=len(x))
    return {
        "page": str(html),
        "picture": str(png),
        "risk": found.risk,
        "calibrated": found.calibrated,
        "interval": found.interval,
        "amplifiers": [part.label for part in found.amplifiers],
        "mitigators": [part.label for part in found.mitigators],
        "notes": list(found.notes),
        "percentiles": percentiles,
    }


def _site(study: Study, base: Path, site: str) -> tuple[places.Place, SiteData, Passage | None]:
    here = world.survey(study, base, study.seed)
    place = next((place for place in here.places if place.name == site), None)
    if place is None:
        close = [known.name for known in here.places if site.casefold() in known.name.casefold()][:5]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise StudyError(f"--site: the study has no site {site!r}{hint}")
    key = str(study.seed)
    admission = here.admissions.get(site)
    passage = (
        admission.passage if admission else None
    )  # who is erased or withdrew is neither explained nor compared with
    data = load(
        place.source,
        here.schema,
        here.outcome,
        site=site,
        holdout=0.0,
        split_key=key,
        passage=passage,
        images=world.images_of(study, base),
    )
    return place, data, passage


def _from_file(path: Path, schema: Schema) -> NDArray[np.float32]:
    import pandas as pd

    try:
        table = pd.read_json(path, orient="records") if path.suffix == ".json" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"--row {path}: cannot be read as a table with one row ({type(error).__name__})") from None
    if len(table) != 1:
        raise DataError(f"--row {path}: expected one row, found {len(table)}")
    return encode_rows({str(name): table[name].to_numpy() for name in table.columns}, schema)


def _explain(
    result: Result,
    schema: Schema,
    row: NDArray[np.float32],
    data: SiteData,
    federation: Mapping[str, Histogram] | None = None,
) -> Explanation:
    if "weights" not in result.model:
        raise RunError("the run's model has no concept weights")
    concepts = dictionary(schema)
    weights, bias = result.model["weights"], float(result.model["bias"][0])
    names = {
        name: Named(label_of(name, f), f.unit, f.low, f.high) if isinstance(f, Number) else Named(label_of(name, f))
        for name, f in schema.features.items()
    }
    # A patient's last row stands for them, as in the explained row itself.
    last = data.train.starts[1:] - 1
    reference, outcomes = data.train.x[last], data.train.y[last]
    logit = concepts.matrix(reference).astype(np.float64) @ weights + bias
    scaling = platt_fit(outcomes, 1 / (1 + np.exp(-logit)))
    return explain(concepts, weights, bias, row, reference, names, scaling, federation)
