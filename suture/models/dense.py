"""Dense networks: affine layers with ReLU or tanh between them, and one or more logits at the end.

All parameters are one flat float32 vector: it is what is sent, averaged and noised. Layer by layer
it holds the weights, *inputs x outputs* in row order, then the biases. A layer is thus one (inputs
+ 1) x outputs matrix whose last row multiplies a constant 1, and the compiled kernels use it as
such. (PyTorch keeps *outputs x inputs*.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.models.forward import compute_logits
from suture.models.network import Description, Floats, Network, Settings, Trainer, probabilities

Values = TypeVar("Values", NDArray[np.float32], NDArray[np.float64])


@dataclass(frozen=True)
class Dense:
    """The shape of a dense network; the parameters live outside of it.

    >>> network = Dense((6, 64, 32, 1))
    >>> network.n_params, network.classes
    (2561, 2)
    """

    kind: ClassVar[str] = "dense"
    trainer: ClassVar[Trainer] = "dense"

    sizes: tuple[int, ...]
    activation: Literal["relu", "tanh"] = "relu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise StudyError(
                f"expected at least input and output sizes, each 1 or more, found {self.sizes}"
            )
        if self.activation not in ("relu", "tanh"):
            raise StudyError(f"expected activation 'relu' or 'tanh', found {self.activation!r}")

    @classmethod
    def shaped(cls, settings: Settings, inputs: int, outputs: int, base: Path) -> Dense:
        """The network of a study."""
        return cls((inputs, *settings.hidden, outputs), settings.activation)

    @classmethod
    def rebuilt(cls, model: Description) -> Dense:
        """Inverse of `described`."""
        return cls(tuple(model["sizes"]), model["activation"])

    def described(self) -> Description:
        """What rebuilds the network, as plain values.

        >>> Dense((2, 1)).described()
        {'kind': 'dense', 'sizes': [2, 1], 'activation': 'relu'}
        """
        return {"kind": self.kind, "sizes": list(self.sizes), "activation": self.activation}

    @property
    def n_params(self) -> int:
        """Length of the parameter vector."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    @property
    def classes(self) -> int:
        """How many outcomes are told apart: one logit means two."""
        return 2 if self.sizes[-1] == 1 else self.sizes[-1]

    @property
    def inputs(self) -> int:
        """Features in a row."""
        return self.sizes[0]

    def init(self, rng: np.random.Generator) -> Floats:
        """Initial weights and biases as PyTorch's ``Linear`` draws them: uniform within
        1/sqrt(inputs).

        >>> bool(np.abs(Dense((4, 1)).init(np.random.default_rng(0))).max() <= 0.5)
        True
        """
        bounds = np.concatenate([np.full((a + 1) * b, a**-0.5) for a, b in pairwise(self.sizes)])
        return np.asarray(rng.uniform(-1.0, 1.0, self.n_params) * bounds, np.float32)

    def layers(self, params: Values) -> list[tuple[Values, Values]]:
        """Views of each layer's weights (inputs x outputs) and biases.

        >>> [(w.shape, b.shape) for w, b in Dense((3, 2, 1)).layers(np.zeros(11, np.float32))]
        [((3, 2), (2,)), ((2, 1), (1,))]
        """
        self.check(params)
        parts, at = [], 0
        for a, b in pairwise(self.sizes):
            block = params[at : at + (a + 1) * b]
            parts.append((block[: a * b].reshape(a, b), block[a * b :]))
            at += (a + 1) * b
        return parts

    def check(self, params: Values) -> None:
        """Refuse a parameter vector of another length: compiled code relies on it."""
        if params.shape != (self.n_params,):
            raise StudyError(
                f"a {self.sizes} network has {self.n_params} parameters, found shape {params.shape}"
            )

    def logits(self, params: Floats, x: Floats) -> Floats:
        """The last layer's outputs, rows x outputs."""
        self.check(params)
        if x.ndim != 2 or x.shape[1] != self.sizes[0]:
            raise StudyError(
                f"a {self.sizes} network takes {self.sizes[0]} features, found shape {x.shape}"
            )
        return compute_logits(self.sizes, self.activation == "relu", params, x)

    def predict(self, params: Floats, x: Floats) -> Floats:
        """With one logit, the probability of outcome 1 for each row; otherwise of each class.

        >>> Dense((2, 1)).predict(np.zeros(3, np.float32), np.ones((2, 2), np.float32)).tolist()
        [0.5, 0.5]
        """
        return probabilities(self.logits(params, x))


def dense_only(network: Network, what: str) -> Dense:
    """The network, for ``what`` needs a dense one.

    >>> dense_only(Dense((2, 1)), "method 'ifedavg'").sizes
    (2, 1)
    """
    if isinstance(network, Dense):
        return network
    raise StudyError(
        f'{what} works with dense networks only; use another method, or model.kind = "dense"'
    )
