"""A finished run, opened to be explained: its record, its study, its sites, and its concepts.

Everything that this room needs from a particular method is in `concept_model`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.engine.folder import RunFolder
from suture.engine.plan import World
from suture.errors import RunError, StudyError
from suture.methods.registry import declared, readable
from suture.models.concepts import Concepts
from suture.models.hazards import proportional
from suture.privacy.software import VERSION
from suture.privacy.unit import Patients
from suture.report.shell import fill, put
from suture.report.theme import Figure, save
from suture.result import Result
from suture.schema.record import Record
from suture.schema.table import Schema
from suture.site.gate import Place
from suture.study import Study

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]
"""Encoded rows or pixels: one row per patient or image."""
Answer = dict[str, Any]
"""Plain values that a command prints, or hands over as JSON."""
RAISES, LOWERS, TOTAL = "#D55E00", "#0072B2", "#5f6368"
"""Colours of what raises and lowers a risk (Okabe and Ito), and of sums."""
"""The method whose model is a weighted sum of concepts."""


@dataclass(frozen=True)
class ConceptModel:
    """A logistic regression over the concepts that a schema declares, in the order of the weights;
    with ``hazard``, the baseline's cumulative hazards, a proportional hazards model."""

    schema: Schema
    weights: Rows
    bias: float
    concepts: Concepts
    hazard: Floats | None = None

    def log_odds(self, rows: Rows) -> Floats:
        """The model's log odds of encoded rows, or log hazards against the baseline."""
        matrix = self.concepts.matrix(rows).astype(np.float64)
        return np.asarray(matrix @ self.weights + self.bias)


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run, read back."""

    folder: Path
    result: Result
    kept: RunFolder
    study: Study
    base: Path
    """The folder that the study's paths are relative to."""

    @classmethod
    def open(cls, folder: str | Path) -> FinishedRun:
        """Read the result and the study; no row is touched."""
        folder = Path(folder).resolve()
        return cls(folder, Result.load(folder), *RunFolder.open(folder))

    @property
    def record(self) -> Record:
        """The content of ``result.json``."""
        data: Any = self.result.data
        record: Record = data
        return record

    @property
    def explanations(self) -> Path:
        """Where explanations are written unless another folder is named."""
        return self.folder / "explanations"

    @property
    def method(self) -> str:
        """The name of the leading method, whose model is explained."""
        return self.record["method"]

    @property
    def label(self) -> str:
        """The leading method's name for people."""
        return self.record["methods"][self.method]["label"]

    @property
    def outcome(self) -> str:
        """The outcome in words."""
        return self.record["outcome"].replace("_", " ")

    @property
    def footer(self) -> list[tuple[str, str]]:
        """The end of a page about one patient: the model, and what is proven about it."""
        private = self.record["privacy"]
        words = "none: the model was trained without differential privacy"
        if private["protected"]:
            promise = f"epsilon {private['epsilon']:.3g} at delta {private['delta']:g}"
            words = f"{promise} for every training patient"
        return [("Model", self.label), ("Privacy of the model", words), ("Suture", VERSION)]

    def concept_model(self, page: str) -> ConceptModel:
        """The run's model; refused where it is not made of concepts, which ``page`` needs."""
        method = declared(self.method)
        schema = Schema.parse(self.record["model"]["schema"])
        if not method.readable(schema):
            raise StudyError(
                f"{page} needs a model made of readable concepts (method.name = "
                f'"{readable("concepts")}"); this run\'s method is {self.method!r}'
            )
        model = self.result.model
        weights = model.get("weights", np.zeros(0, np.float32))
        bias = float(model["bias"][0]) if len(weights) else 0.0
        hazard = np.asarray(model["hazard"], np.float64) if "hazard" in model else None
        found = ConceptModel(schema, weights, bias, method.concepts(schema), hazard)
        if weights.shape != (len(found.concepts),):
            raise RunError(
                f"the run's model has {len(weights)} weights, but its schema declares "
                f"{len(found.concepts)} concepts"
            )
        return found


def place_of(world: World, site: str) -> Place:
    """A site of the federation by name; an unknown name is answered with similar ones."""
    found = next((place for place in world.places if place.name == site), None)
    if found is None:
        wanted = site.casefold()
        close = [place.name for place in world.places if wanted in place.name.casefold()][:5]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise StudyError(f"--site: the study has no site {site!r}{hint}")
    return found


def last_rows(patients: Patients) -> tuple[Rows, NDArray[np.int32]]:
    """The last row of every patient, and its outcome: two rows of one patient are not two
    patients."""
    last = patients.starts[1:] - 1
    return patients.x[last], patients.y[last]


def sigmoid(log_odds: float) -> float:
    """The risk that belongs to log odds."""
    return 1 / (1 + math.exp(-max(-40.0, min(40.0, log_odds))))


def risk_of(score: float, hazard: Floats | None = None) -> float:
    """The risk that belongs to log odds, or to a log hazard by the end of a baseline's intervals.

    >>> risk_of(0.0), round(risk_of(0.0, np.array([0.2, np.log(2)])), 6)
    (0.5, 0.5)
    """
    return (
        sigmoid(score) if hazard is None else float(proportional(np.array([score]), hazard)[0, -1])
    )


def calibrated_interval(
    log_odds: float, scaling: tuple[tuple[float, float], Floats], hazard: Floats | None = None
) -> tuple[float, tuple[float, float]]:
    """The calibrated risk and its 95 % interval, which covers what the site's own patients leave
    open about the calibration.

    ``scaling`` is the site's Platt scaling: slope and intercept, and their covariance.
    """
    (slope, intercept), covariance = scaling
    at = np.array([log_odds, 1.0])
    half = 1.959964 * math.sqrt(float(at @ covariance @ at))
    middle = slope * log_odds + intercept
    low, high = (risk_of(middle + way * half, hazard) for way in (-1, 1))
    return risk_of(middle, hazard), (low, high)


def file_stem(*words: str) -> str:
    """A file name without an ending, made of letters, digits, hyphens and underscores.

    >>> file_stem("São José", "7/8")
    'S-o-Jos--7-8'
    """
    text = "-".join(words)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text)[:80]


def write_page(
    path: Path,
    template: str,
    context: Mapping[str, object],
    charts: Mapping[str, tuple[Figure, str]],
    name: str,
) -> Answer:
    """Write a page with its charts and captions, and the first chart as a picture, both named
    ``path`` without its ending; ``name`` is that of downloaded charts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    html, png = (path.with_name(f"{path.name}.{ending}") for ending in ("html", "png"))
    figures = {key: chart for key, (chart, _) in charts.items()}
    captions = {key: caption for key, (_, caption) in charts.items()}
    put(fill(template, context, figures, captions, name), html)
    save(next(iter(figures.values())), png)
    return {"page": str(html), "picture": str(png)}


def percent(share: float) -> str:
    """A share in percent with one decimal; what is not certain is never rounded to certainty.

    >>> percent(0.123), percent(0.99976), percent(0.0004), percent(1.0)
    ('12.3 %', 'over 99.9 %', 'under 0.1 %', '100.0 %')
    """
    if 0.9995 <= share < 1:
        return "over 99.9 %"
    return "under 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def cautions(marked: Iterable[tuple[str, str]], separator: str = ", ") -> list[str]:
    """Names by why to be careful with them, one line per reason.

    >>> cautions([("protected attribute: review", "Sex"), ("", "Lactate")])
    ['Protected attribute: Sex']
    """
    names: dict[str, list[str]] = {}
    for caution, name in marked:
        if caution:
            names.setdefault(caution.split(":")[0], []).append(name)
    return [f"{why[0].upper()}{why[1:]}: {separator.join(found)}" for why, found in names.items()]
