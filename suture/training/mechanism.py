"""Which trainer trains a network, and DP-SGD as a mechanism of the door: kernel, start and settings
all key the noise.

The trainers are the door's trusted base: each draws patients and noise by itself, clips what each
patient adds, and adds the very vector that it has clipped.

| kernel        | what it trains                                      | where                   |
|---------------|-----------------------------------------------------|-------------------------|
| `plain`       | a network, by the trainer that it names             | `TRAINERS`              |
| `affine`      | a dense network between a site's affine layers      | `affine.train_affine`    |
| `layers`      | the affine layers alone                             | `affine.train_affine`    |
| `mixed`       | a global and a personal model that are mixed (APFL) | `pairs.train_mixed`     |
| `tied`        | a personal model tied to the global one (Ditto)     | `pairs.train_tied`      |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from suture.errors import DataError, PrivacyError, StudyError
from suture.models.dense import Floats, dense_only
from suture.models.dense import Trainer as TrainerName
from suture.models.network import Network
from suture.models.scattering import Scattering
from suture.privacy.door import mechanism
from suture.privacy.noise.source import State
from suture.privacy.unit import Patients
from suture.training import local as training
from suture.training.affine import NOTHING, PLAIN, train_affine
from suture.training.dpsgd import Fused
from suture.training.imaging import train_images
from suture.training.local import Local
from suture.training.pairs import train_mixed, train_tied

Kernel = Literal["plain", "affine", "layers", "mixed", "tied"]


Trainer = Callable[[Network, Floats, Patients, Local, bytes, Floats | None, Floats | None], Floats]
"""See `train`."""


def _train_dense(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None,
    push: Floats | None,
) -> Floats:
    dense = dense_only(network, "this training")
    if not local.dropout:
        fused = Fused(dense, params, data, local, anchor, push)
        fused.train(key)
        return fused.params()
    if anchor is not None or push is not None:
        raise StudyError(
            "training with dropout has no anchor or push; set model.dropout to 0 for this method"
        )
    return train_affine(dense, params, PLAIN, NOTHING, data, local, key)[0]


def _train_head(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None,
    push: Floats | None,
) -> Floats:
    """A linear model of public features: dense training on the features."""
    if not isinstance(network, Scattering):
        raise StudyError(f"this training needs public features, found {network.kind!r}")
    features = Patients(network.features(data.x), data.y, data.starts, data.group, data.declared)
    return _train_dense(network.head, params, features, local, key, anchor, push)


TRAINERS: dict[TrainerName, Trainer] = {
    "dense": _train_dense,
    "images": train_images,
    "features": _train_head,
}
"""Every trainer, by the name that a network's ``trainer`` states."""


def train(
    network: Network,
    params: Floats,
    data: Patients,
    local: Local,
    key: bytes,
    anchor: Floats | None = None,
    push: Floats | None = None,
) -> Floats:
    """Parameters after local training; the randomness is a function of ``key`` alone, and the
    arguments are left as they are.

    The proximal term pulls towards ``anchor``, by default the starting point. ``push`` has one
    number per row, which times the row's risk is added to its loss before clipping.
    """
    return TRAINERS[network.trainer](network, params, data, local, key, anchor, push)


@mechanism
@dataclass(frozen=True, eq=False)
class DpSgd:
    """One local training; ``size`` is the declared number of patients, from which rate, steps and
    divisor follow.

    ``extra`` is what a kernel needs besides: arrays and numbers, none of them computed from rows
    without noise.
    """

    network: Network
    local: Local
    size: int
    start: Floats
    kernel: Kernel = "plain"
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def event(self) -> dp_accounting.DpEvent:
        """As many steps of the Poisson-sampled Gaussian mechanism as the training takes."""
        return training.event(self.local, self.size)

    def run(self, data: Patients, key: bytes) -> State:
        """The results by name: ``params``, and for personal models ``own`` and ``alpha``."""
        if data.size != self.size:
            raise PrivacyError(
                "the training was planned for another declared size than the table's"
            )
        start, local, extra = self.start, self.local, self.extra
        if self.kernel == "plain":
            push, pushes = None, extra.get("pushes")
            if pushes is not None:
                push = by_row(pushes, groups_of(data, len(pushes) - 1), data.starts)
            anchor = extra.get("anchor")
            return {"params": train(self.network, start, data, local, key, anchor, push)}
        network, own = dense_only(self.network, f"the kernel {self.kernel!r}"), extra["own"]
        if self.kernel in ("affine", "layers"):
            layers, frozen = extra["layers"], self.kernel == "layers"
            w, v = train_affine(network, start, layers, own, data, local, key, frozen=frozen)
            return {"params": w, "own": v}
        if self.kernel == "tied":
            w, v = train_tied(network, start, own, extra["pull"], data, local, key)
            return {"params": w, "own": v}
        alpha, adaptive = extra["alpha"], extra["adaptive"]
        w, v, alpha = train_mixed(network, start, own, alpha, adaptive, data, local, key)
        return {"params": w, "own": v, "alpha": np.array(alpha, np.float32)}


def by_row(
    each: NDArray[np.floating], group: NDArray[np.int32], starts: NDArray[np.int64]
) -> Floats:
    """The weight of each row, from those of the groups (the last is for no group): a patient's is
    divided among their rows.

    >>> by_row(np.array([6.0, 1.0, 0.5]), np.array([0, -1], np.int32), np.array([0, 3, 4])).tolist()
    [2.0, 2.0, 2.0, 0.5]
    """
    rows = np.diff(starts)
    return np.repeat(each.astype(np.float64)[group] / rows, rows).astype(np.float32)


def groups_of(data: Patients, count: int) -> NDArray[np.int32]:
    """The patients' protected groups; a group beyond those declared counts as none."""
    if data.group is None:
        raise DataError(
            "patients have no protected group; declare schema.protected, for example on 'sex'"
        )
    return np.where(data.group < count, data.group, -1).astype(np.int32)
