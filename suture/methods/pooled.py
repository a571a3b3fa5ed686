"""Pooled: all rows in one place, one model. Not federated: the reference for what the wall costs.

Only the embedded engine can run it, because it moves rows. Under DP it is central DP-SGD over all
patients: the sampling rate is smaller than any hospital's, so the same noise gives a smaller
epsilon, the same for every patient.

It has settings of its own (``pooled_rate``, ``pooled_clip``), because what suits each hospital's few
patients does not suit all of them in one place: tuned by itself it is an upper reference. The others
are the study's, since the noise is planned from them.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from suture.methods.base import Weighting
from suture.methods.declared import NETWORKS, Declared, Range, Settings, Setup
from suture.methods.fedavg import FedAvg
from suture.models.network import Network
from suture.training.local import Local


def pooled(network: Network, local: Local, weighting: Weighting = "size") -> FedAvg:
    """FedAvg with a single site that holds everybody's rows is ordinary training with restarts of
    the optimiser."""
    return FedAvg(
        network, local, weighting, name="pooled", label="Pooled (not federated)", pooled=True
    )


class Pooling(Settings):
    """Its own; None: the study's."""

    pooled_rate: float | None = Field(default=None, gt=0)
    pooled_clip: float | None = Field(default=None, gt=0)


def build(setup: Setup) -> FedAvg:
    """From a study."""
    own, local = Pooling.model_validate(setup.settings), setup.local
    clip = None if local.clip is None else own.pooled_clip or local.clip
    return pooled(setup.network, replace(local, rate=own.pooled_rate or local.rate, clip=clip))


DECLARED = Declared(
    "pooled",
    build,
    Pooling,
    searches=(),
    space=lambda settings: (
        Range("method.pooled_rate", 0.01, 3.0),
        Range("method.pooled_clip", 0.1, 3.0),
    ),
    clipped=False,
    moves_rows=True,
    outcomes=NETWORKS,
)
