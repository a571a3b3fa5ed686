"""Pooled: all rows in one place, one model. Not federated: the reference for what the wall costs.

Only the embedded engine can run it, because it moves rows. Under DP it is central DP-SGD over all
patients: the sampling rate is smaller than any hospital's, so the same noise gives a smaller
epsilon, the same for every patient.
"""

from __future__ import annotations

from suture.methods.base import Weighting
from suture.methods.declared import NETWORKS, Declared, Setup
from suture.methods.fedavg import FedAvg
from suture.models.network import Network
from suture.training.local import Local


def pooled(network: Network, local: Local, weighting: Weighting = "size") -> FedAvg:
    """FedAvg with a single site that holds everybody's rows is ordinary training with restarts of
    the optimiser."""
    return FedAvg(
        network, local, weighting, name="pooled", label="Pooled (not federated)", pooled=True
    )


def build(setup: Setup) -> FedAvg:
    """From a study."""
    return pooled(setup.network, setup.local)


DECLARED = Declared("pooled", build, moves_rows=True, outcomes=NETWORKS)
