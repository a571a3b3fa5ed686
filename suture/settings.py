"""What a study file may say, table by table: frozen, validated settings with their defaults. `study.py` puts them together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suture.site.consent import ConsentSpec
from suture.site.records import SourceSpec

FROZEN = ConfigDict(frozen=True, extra="forbid")
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^/\\\x00-\x1f]+$")]


class LifetimeSpec(BaseModel):
    """A site's budget over all studies, for as long as its ledger lives."""

    model_config = FROZEN

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["pld", "rdp"] = "pld"


class Site(BaseModel):
    """One hospital: its name, region and where its rows are (read at the site only)."""

    model_config = FROZEN

    name: Name
    data: SourceSpec | None = None
    """None: only the site itself knows, as in a federation across machines (docs/federation.md)."""
    region: str = ""
    test: SourceSpec | None = None
    """A separate test table; without it ``evaluation.holdout`` decides."""
    home: str | None = None
    """Folder of the site's ledger and secret; by default ``.suture/<name>`` beside the study file."""
    charter: str | None = None
    """The site's signed charter; by default ``charter.toml`` in its home, if there is one."""
    trust: str | None = None
    """The public keys the site trusts to sign charters, where its home has no ``trust.pub`` of its own."""
    consent: ConsentSpec | None = None
    """The table of who consents to which study."""
    lifetime: LifetimeSpec | None = None
    """What all studies together may spend on the site's patients; recorded in its ledger, once."""


class CohortSpec(BaseModel):
    """A built-in federation by name, with its options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    def options(self) -> dict[str, Any]:
        """The options given beside the name."""
        return dict(self.model_extra or {})


class ImagesSpec(BaseModel):
    """How a site's image files are read; see docs/imaging.md."""

    model_config = FROZEN

    size: int = Field(default=64, ge=8, le=1024)
    """Pixels along each side, after resampling."""
    folder: str = ""
    """Where the names in the table begin, seen from the table's own folder."""
    broken: Literal["refuse", "skip"] = "refuse"
    """What happens to a file that cannot be used."""


class ModelSpec(BaseModel):
    """A dense network, where ``hidden = []`` is logistic regression, or for images a residual one."""

    model_config = FROZEN

    kind: Literal["dense", "residual"] = "dense"
    depth: int = Field(default=8, ge=1)
    """Layers of a residual network: 8, 10, 18, 20 or 34."""
    width: int = Field(default=8, ge=1)
    """Channels of a residual network's first stage; 64 for the published ResNet-18 and ResNet-34."""
    weights: str | None = None
    """A local file of public weights to start a residual network from: torchvision's ImageNet weights, or an NPZ file."""
    hidden: tuple[Annotated[int, Field(ge=1, le=8192)], ...] = (64, 32)
    activation: Literal["relu", "tanh"] = "relu"
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of inputs and hidden units left out at random in each training row."""
    scaling: Literal["bounds", "site"] = "bounds"
    """Numbers by their declared bounds, or standardised at each site with its own means (fitted: not under privacy)."""


class MethodSpec(BaseModel):
    """How the hospitals learn together. Settings that a method does not use are ignored by it; see docs/methods.md."""

    model_config = FROZEN

    name: str = "fedadam"
    rounds: int = Field(default=100, ge=1)
    local_epochs: int = Field(default=5, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    """A round of local training ends after so many steps, even before ``local_epochs`` do."""
    batch: int = Field(default=32, ge=1)
    rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    rate_decay: float = Field(default=1.0, gt=0, le=1)
    rate_steps: int = Field(default=0, ge=0)
    class_weights: tuple[Annotated[float, Field(gt=0)], ...] | Literal["balanced", "inverse"] | None = None
    participation: float = Field(default=1.0, gt=0, le=1)
    weighting: Literal["size", "uniform"] | None = None
    server_momentum: float = Field(default=0.0, ge=0, lt=1)
    server_rate: float = Field(default=0.1, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0)
    proximal: float = Field(default=0.1, ge=0)
    clusters: int = Field(default=2, ge=1)
    warmup: int = Field(default=5, ge=1)
    input_layer: Literal["none", "vector", "scalar"] = "vector"
    output_layer: Literal["none", "vector", "scalar"] = "none"
    share_layers: bool = False
    layer_spread: float | None = Field(default=None, gt=0)
    alpha: float = Field(default=0.5, ge=0, le=1)
    alpha_adaptive: bool = False
    tuning: float = Field(default=0.1, ge=0, lt=1)
    mode: Literal["votes", "votes+moments", "secure"] = "votes"
    picks: int = Field(default=4, ge=1)
    quorum: float | None = Field(default=None, ge=0)
    concepts: int = Field(default=60, ge=1)
    honest: float = Field(default=0.5, gt=0, le=1)
    teams: int = Field(default=12, ge=1)
    contrast: float = Field(default=1.0, ge=0)
    temperature: float = Field(default=0.5, gt=0)
    fairness: float = Field(default=0.5, ge=0)
    fairness_share: float = Field(default=0.1, gt=0, lt=1)
    gap_threshold: float = Field(default=0.05, ge=0)
    boost: float = Field(default=1.5, ge=1)
    rates_every: int = Field(default=1, ge=1)
    secure_rates: bool = True
    ensemble: bool = False
    ensemble_epochs: int = Field(default=5, ge=1)
    ensemble_fairness: float = Field(default=1.0, ge=0)
    ensemble_rate: float = Field(default=0.05, gt=0)
    claimed_epsilon: float = Field(default=5.0, gt=0)


class PrivacySpec(BaseModel):
    """The promise, stated before any row is read. No ``[privacy]`` table means no differential privacy."""

    model_config = FROZEN

    unit: Literal["patient"]
    epsilon: float | None = Field(default=None, gt=0)
    noise_multiplier: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    accountant: Literal["pld", "rdp"] = "pld"
    clip: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _one_figure_at_least(self) -> PrivacySpec:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("give epsilon (noise is then calibrated per hospital), noise_multiplier, or both")
        return self


class EvaluationSpec(BaseModel):
    """How results are measured."""

    model_config = FROZEN

    holdout: float = Field(default=0.2, ge=0, lt=1)
    folds: int = Field(default=0, ge=0)
    """0 holds out patients; 2 or more hold out whole hospitals, each once."""
    seeds: int = Field(default=1, ge=1)
    threshold: float = Field(default=0.5, gt=0, lt=1)
    compare: tuple[str, ...] = ()
    """Other methods to run beside ``method.name``, with the same settings."""
    metric: str = "auc"
    every: int = Field(default=1, ge=1)
    """Test patients are scored after every so many rounds, and after the last; the history has these rounds only."""
    group_thresholds: bool = False
    """Measure also with thresholds for each protected group, which every site fits for itself and keeps."""
    describe: bool | None = None
    """Whether the report shows exact histograms of the rows. Default: only for generated patients, or without DP."""


class FederationSpec(BaseModel):
    """What a round needs when sites may be missing. The embedded engine's sites are missing only without budget."""

    model_config = FROZEN

    minimum_sites: int | None = Field(default=None, ge=1)
    """A round with fewer answers ends the run; by default every site that is asked must answer."""
    deadline: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds in which a site must answer a request."""
    gathering: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for all sites to connect before the first round."""


def explain(error: ValidationError) -> str:
    """Pydantic's findings as one line each: where, what was expected, what was found."""
    lines = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        text = problem["msg"].removeprefix("Value error, ")
        found = problem.get("input")
        shown = f", found {found!r}" if isinstance(found, str | int | float | bool) and place else ""
        hint = "; it is not a setting here" if problem["type"] == "extra_forbidden" else ""
        lines.append(f"{place}: {text}{shown}{hint}" if place else text)
    return "; ".join(lines)
