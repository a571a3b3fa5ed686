"""One paper a file. `build` turns a study's settings into a method object; the list is written out, not registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.methods.base import Method
    from suture.methods.fedopt import Server
    from suture.models.dense import Dense
    from suture.study import MethodSpec
    from suture.training.local import Local

METHODS = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fedcluster", "alone", "pooled")


def build(name: str, spec: MethodSpec, network: Dense, local: Local) -> Method:
    """The method a study names, with the study's settings.

    >>> from suture.models.dense import Dense
    >>> from suture.study import MethodSpec
    >>> from suture.training.local import Local
    >>> build("fedadam", MethodSpec(), Dense((6, 1)), Local()).label
    'FedAdam (FedCVR)'
    """
    from suture.methods.alone import Alone
    from suture.methods.fedavg import FedAvg
    from suture.methods.fedcluster import FedCluster
    from suture.methods.fedopt import FedOpt
    from suture.methods.fedprox import fedprox
    from suture.methods.pooled import pooled

    if name == "fedavg":
        return FedAvg(network, local, spec.weighting or "size")
    if name == "fedprox":
        return fedprox(network, local, spec.proximal, spec.weighting or "size")
    if name in ("fedadam", "fedyogi", "fedadagrad"):
        weighting = spec.weighting or "uniform"
        return FedOpt(
            network, local, cast("Server", name), weighting, spec.server_rate, spec.beta1, spec.beta2, spec.tau
        )
    if name == "fedcluster":
        return FedCluster(network, local, spec.clusters, spec.warmup, spec.weighting or "size")
    if name == "alone":
        return Alone(network, local)
    if name == "pooled":
        return pooled(network, local)
    raise StudyError(f"method.name: unknown method {name!r}; expected one of {', '.join(METHODS)}")
