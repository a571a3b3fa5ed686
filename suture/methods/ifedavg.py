"""iFedAvg. Roschewitz, Hartley, Corinzia, Jaggi: iFedAvg – Interpretable Data-Interoperability for
Federated Learning. arXiv:2107.06580, sections 2.1 and 2.2, appendix A.4.

Every site keeps an element-wise affine layer before the shared network, and if wished one after it.
They start as the identity, are trained with the network in one backward pass, and stay at the site;
FedAvg runs on the network alone. What a site had to shift and stretch says where its data differ
from the federation's (`suture interop`).

| here | paper |
|---|---|
| `shared` | f_shared; for two classes it has two logits, as the paper's |
| `layers` (own state): b_in, w_in, b_out, w_out | f_in(x) = (x + b_in) * w_in, f_out likewise |
| `layers.out = "scalar"` | w_out as a single number (appendix A.4, Figure 19) |
| `layers.out = "bias"`, `"weight"` | only b_out or only w_out trained (Figure 18) |
| `weighting = "uniform"` | section 4, Training |
| `share` | section 5.2: sites willing to show their layers for the heat map |

Under DP the layers are trained with the network as one model: one joint gradient a patient, clipped
and noised as one (docs/interoperability.md has the proof, and why leaving the noise off the layers
would void it). They are then private themselves, so showing them costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from suture.methods.base import (
    Answer,
    Arrays,
    Needs,
    State,
    Trained,
    Weighting,
    Wrapper,
    mean_delta,
    private_local,
    update_of,
    weights_field,
)
from suture.methods.declared import Citation, Declared, Setup
from suture.methods.fedavg import Weighted
from suture.models.dense import Dense, dense_only
from suture.privacy.door import Payload, Sealed, Session
from suture.schema.message import Field
from suture.training.affine import Kind, Layers
from suture.training.mechanism import DpSgd

IN_ONLY = Layers()
"""The paper's main experiments: f_in as vectors, no f_out."""


@dataclass(frozen=True)
class IFedAvg(Trained):
    """FedAvg between personal affine layers."""

    network: Dense
    layers: Layers = IN_ONLY
    share: bool = False
    weighting: Weighting = "uniform"
    name: str = "ifedavg"
    label: str = "iFedAvg"

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", two_logits(self.network))

    @property
    def needs(self) -> Needs:
        """Only showing the layers needs each site's answer."""
        return "each" if self.share else "sum"

    def init(self, sites: Sequence[str], rng: np.random.Generator) -> State:
        """The shared network, and room for the layers of those who show them."""
        state: State = {"shared": self.network.init(rng)}
        if self.share:
            state["sites"] = np.array(list(sites), dtype=np.str_)
            state["layers"] = np.repeat(self._identity()[None, :], len(sites), axis=0)
        return state

    def broadcast(self, state: State, site: str) -> Arrays:
        """The shared network."""
        return {"shared": state["shared"]}

    def expects(self, round_: int, site: str) -> Mapping[str, Field]:
        """The shared network."""
        return {"shared": weights_field(self.network)}

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        """Train network and layers; the network's change leaves, the layers stay unless the study
        shows them."""
        begin = np.ascontiguousarray(message["shared"], dtype=np.float32)
        found = self._trained(session, begin, own, "affine")
        payload = {"delta": update_of(session, begin, found["params"], self.local)}
        layers = found["own"]
        return ({**payload, "layers": layers} if self.share else payload), {"layers": layers.value}

    def server_step(self, state: State, answers: Sequence[Answer]) -> State:
        """FedAvg on the shared network."""
        new = dict(state)
        new["shared"] = (state["shared"] - mean_delta(answers, self.weighting)).astype(np.float32)
        if self.share:
            row = {site: i for i, site in enumerate(state["sites"].tolist())}
            new["layers"] = state["layers"].copy()
            for answer in answers:
                new["layers"][row[answer.site]] = answer.payload["layers"]
        return new

    def predict(
        self, state: State, own: State, x: NDArray[np.float32], site: str
    ) -> NDArray[np.float32]:
        """The site's own risk: its layers around the shared network; a site without layers has the
        identity."""
        return predict(
            self.network, state["shared"], self.layers, own.get("layers", self._identity()), x
        )

    def join_step(self, session: Session, shared: NDArray[np.float32], own: State) -> State:
        """One round of a hospital that comes later: only its layers are fitted, the network stays
        as it is.

        It costs the new hospital one `round_event`; nobody else takes part or pays. The layers'
        gradient alone is clipped, so the whole of C is theirs.
        """
        return {"layers": self._trained(session, shared, own, "layers")["own"].value}

    def _trained(
        self,
        session: Session,
        begin: NDArray[np.float32],
        own: State,
        kernel: Literal["affine", "layers"],
    ) -> dict[str, Sealed]:
        extra = {"layers": self.layers, "own": own.get("layers", self._identity())}
        local = private_local(self.local, session.noise)
        return session.train(
            "training", DpSgd(self.network, local, session.size, begin, kernel, extra)
        )

    def _identity(self) -> NDArray[np.float32]:
        return self.layers.identity(self.network.sizes[0], self.network.sizes[-1])


class Shaped(Weighted):
    """iFedAvg's own."""

    input_layer: Kind = "vector"
    output_layer: Kind = "none"
    share_layers: bool = False
    layer_spread: float | None = Setting(default=None, gt=0)


def build(setup: Setup) -> IFedAvg:
    """From a study."""
    own = Shaped.model_validate(setup.settings)
    layers = Layers(own.input_layer, own.output_layer, own.layer_spread)
    network = dense_only(setup.network, "method 'ifedavg'")
    return IFedAvg(network, setup.local, layers, own.share_layers, own.weighting or "uniform")


def _shows(settings: Shaped) -> bool:
    return settings.share_layers


DECLARED = Declared(
    "ifedavg",
    build,
    Shaped,
    cites=(
        Citation(
            "iFedAvg: Interpretable Data-Interoperability for Federated Learning",
            "Roschewitz, Hartley, Corinzia, Jaggi",
            2021,
            "arXiv:2107.06580",
        ),
    ),
    model="layers",
    shows_layers=_shows,
)


@dataclass(frozen=True)
class Joining(Wrapper):
    """iFedAvg at a late hospital: the message is the finished network, the answer is empty."""

    inner: IFedAvg
    name: str = "ifedavg join"

    def site_step(self, session: Session, own: State, message: Arrays) -> tuple[Payload, State]:
        return {}, self.inner.join_step(session, message["shared"], own)


def two_logits(network: Dense) -> Dense:
    """The paper's network has a logit a class, two classes included.

    >>> two_logits(Dense((6, 64, 1), "tanh")).sizes, two_logits(Dense((6, 3))).sizes
    ((6, 64, 2), (6, 3))
    """
    return replace(network, sizes=(*network.sizes[:-1], 2)) if network.sizes[-1] == 1 else network


def predict(
    network: Dense,
    shared: NDArray[np.float32],
    layers: Layers,
    own: NDArray[np.float32],
    x: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Probabilities of f_out(f_shared(f_in(x))): of outcome 1 for two classes, else one column a
    class.

    >>> predict(Dense((1, 2)), np.array([0, 1, 0, 0], np.float32), Layers(), np.array([1, 2], np.float32),
    ...     np.array([[-1.0]], np.float32)).tolist()
    [0.5]
    """
    parts = layers.split(own, network.sizes[0], network.sizes[-1])
    if "b_in" in parts:
        x = (x + parts["b_in"]) * parts["w_in"]
    z = network.logits(shared, np.ascontiguousarray(x, np.float32)).astype(np.float64)
    if "b_out" in parts:
        z = (z + parts["b_out"]) * parts["w_out"]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = np.asarray(e / e.sum(axis=1, keepdims=True), np.float32)
    return p[:, 1] if network.sizes[-1] == 2 else p
