"""What a method declares about itself before it is built: its settings, its papers, what
`suture tune` may search, and, from public facts, whether it suits a federation.

Everything that a run, a page or a search must know about a method by name is here, so that no other
room knows one method from another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from suture.errors import StudyError
from suture.methods.base import Method
from suture.models.concepts import Concepts, dictionary
from suture.models.network import Network
from suture.schema.outcome import TWO, Classes, Outcome, Survival
from suture.schema.table import Schema
from suture.training.local import Local


class Settings(BaseModel):
    """A method's own settings, as written in ``[method]`` of a study file; this one has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Citation(NamedTuple):
    """A paper, as it stands in result.json and at the foot of a report."""

    title: str
    authors: str
    year: int
    where: str


PROMISE = (
    Citation("Deep Learning with Differential Privacy", "Abadi et al.", 2016, "arXiv:1607.00133"),
    Citation(
        "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
        "Mironov, Talwar, Zhang",
        2019,
        "arXiv:1908.10530",
    ),
    Citation(
        "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions",
        "Doroshenko et al.",
        2022,
        "arXiv:2207.04380",
    ),
)
"""The papers behind a promise."""


@dataclass(frozen=True)
class Choice:
    """One of a few values of ``table.key``.

    >>> Choice("method.rounds", (10, 20)).words()
    '10, 20'
    """

    name: str
    values: tuple[Any, ...]

    def words(self) -> str:
        """For the table on the page."""
        return ", ".join(map(str, self.values))


@dataclass(frozen=True)
class Range:
    """Any value from ``low`` to ``high``, evenly spread, or evenly over orders of magnitude with
    ``log``.

    >>> Range("method.rate", 0.03, 3.0).words()
    '0.03 to 3, log'
    """

    name: str
    low: float
    high: float
    log: bool = True

    def words(self) -> str:
        """For the table on the page."""
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"


Space = tuple[Choice | Range, ...]
ROUNDS = Choice("method.rounds", (10, 20, 50))
TRAINING: Space = (
    ROUNDS,
    Choice("method.local_epochs", (1, 2, 5)),
    Choice("method.batch", (16, 32, 64, 128, 256)),
    Range("method.rate", 0.03, 3.0),
)
NETWORKS = (Classes, Survival)
"""The outcomes that networks are trained for by `Fused` and `row_gradients`."""
LOCAL_TRAINING = frozenset(
    [
        "local_epochs",
        "local_steps",
        "batch",
        "rate",
        "momentum",
        "rate_decay",
        "rate_steps",
        "class_weights",
    ]
)
CLIP = Range("privacy.clip", 0.1, 3.0)
SERVER_RATE = Range("method.server_rate", 0.003, 0.3)


@dataclass(frozen=True)
class Public:
    """What everybody knows about a federation before any row is read."""

    schema: Schema | None = None
    sites: int = 1
    patients: int = 1 << 40
    sizes: Mapping[str, int] = field(default_factory=dict)
    outcome: Outcome = TWO
    epsilon: float | None = None
    masked: bool = False
    images: bool = False
    featured: bool = False
    """Whether images are turned into public features."""
    scaling: str = "bounds"
    delta: float = 1e-5
    honest: int = 1
    """Of how many sites a sum's noise is counted on, by what [protection] says of dropouts and
    colluders."""


@dataclass(frozen=True)
class Setup:
    """What a method is built from: its own settings, what all methods have, and what is public."""

    settings: Settings
    network: Network
    local: Local
    rounds: int = 100
    participation: float = 1.0
    public: Public = Public()
    trained: Method | None = None
    """For an evaluation: the method whose model is measured, and the sites that trained it."""
    trainers: tuple[str, ...] = ()

    def every_site(self, what: str) -> None:
        """Refuse partial participation, where a sum needs the noise of every site."""
        if self.participation < 1:
            raise StudyError(
                f"method.participation: {what} needs every site in every round; set it to 1"
            )


@dataclass(frozen=True)
class Fit:
    """How well a method suits a federation: 0 not at all, 1 as a comparison, more is better."""

    points: float
    why: str


COMPARISON = Fit(1.0, "a comparison")


def as_comparison(public: Public) -> Fit:
    """For methods that nobody needs to be recommended."""
    return COMPARISON


@dataclass(frozen=True)
class Declared:
    """One method, by name."""

    name: str
    build: Callable[[Setup], Method]
    settings: type[Settings] = Settings
    cites: tuple[Citation, ...] = ()
    uses: frozenset[str] = LOCAL_TRAINING
    """Which of the settings of local training apply."""
    searches: Space = TRAINING
    """What `suture tune` searches of the settings that methods share."""
    space: Callable[[Any], Space] = lambda settings: ()
    """What it searches of the method's own."""
    clipped: bool = True
    """Whether ``privacy.clip`` bounds what a patient adds."""
    early: Callable[[Any], bool] = lambda settings: True
    """Whether the middle of a training says something about its end, so that a search may stop
    one."""
    suits: Callable[[Public], Fit] = as_comparison
    schedule: Callable[[Public], Mapping[str, Any]] = lambda public: {}
    """The settings that it recommends for a federation: rounds, and what else is not its default."""
    unproven: str = ""
    """Why no budget pays for it and what to use instead: a study with [privacy] refuses it."""
    global_model: bool = False
    """Whether it ends in one global model, beside which a site may keep its own
    (``method.ensemble``)."""
    one_model: bool = False
    """Whether every site ends with the same model, without more: then candidates can be compared on
    all patients (``method.candidates``). A ``global_model`` can too."""
    moves_rows: bool = False
    """Whether it is a reference that moves rows, which only one machine can do."""
    model: Literal["network", "concepts", "layers", "none"] = "network"
    """What there is to read in a finished model: `suture explain` reads concepts, `suture interop`
    layers; a statistic has none."""
    concepts: Callable[[Schema], Concepts] = dictionary
    """With a model of concepts: the dictionary that its weights belong to."""
    outcomes: tuple[type[Outcome], ...] = (Classes,)
    """What it can predict, or tell about."""
    shows_layers: Callable[[Any], bool] = lambda settings: False
    """Whether sites show their layers, so that exact profiles of the columns belong to a run
    without a promise."""

    def refuses(self, outcome: Outcome) -> str:
        """Why it cannot be asked about an outcome, and what to do."""
        if isinstance(outcome, Classes):
            return (
                f"{self.name!r} is about follow-up until an event; write outcome = {{ time = ... }}"
            )
        return (
            f"{self.name!r} is about classes, and this study's outcome is the time until an event; "
            "use another method (`suture methods` lists them), or name the outcome's column alone"
        )

    def readable(self, schema: Schema) -> bool:
        """Whether a finished model on this schema is made of concepts: a model of pictures is a
        network's parameters."""
        return self.model == "concepts" and schema.image is None

    @property
    def own(self) -> frozenset[str]:
        """The names of its own settings."""
        return frozenset(self.settings.model_fields)

    @property
    def chooses(self) -> bool:
        """Whether a study may name candidates for its settings."""
        return self.global_model or self.one_model

    def searched(self, settings: Settings, private: bool) -> Space:
        """The whole search space of a study's method."""
        clip = (CLIP,) if private and self.clipped else ()
        return (*self.searches, *clip, *self.space(settings))
