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

METHODS = (
    "fedavg",
    "fedprox",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedcluster",
    "ifedavg",
    "apfl",
    "ditto",
    "finetune",
    "alone",
    "pooled",
)


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
    if name in ("ifedavg", "apfl", "ditto", "finetune"):
        return _personal(name, spec, network, local)
    if name == "alone":
        return Alone(network, local)
    if name == "pooled":
        return pooled(network, local)
    raise StudyError(f"method.name: unknown method {name!r}; expected one of {', '.join(METHODS)}")


def _personal(name: str, spec: MethodSpec, network: Dense, local: Local) -> Method:
    """The methods that leave every site with a model of its own."""
    from suture.methods.apfl import Apfl
    from suture.methods.ditto import Ditto
    from suture.methods.finetune import FineTune
    from suture.methods.ifedavg import IFedAvg
    from suture.training.personal import Layers

    weighting = spec.weighting or "uniform"
    if name == "ifedavg":
        return IFedAvg(network, local, Layers(spec.input_layer, spec.output_layer), spec.share_layers, weighting)
    if name == "apfl":
        return Apfl(network, local, spec.alpha, spec.alpha_adaptive, weighting)
    if name == "ditto":
        return Ditto(network, local, spec.proximal, weighting)
    tuning = max(1, round(spec.rounds * spec.tuning))
    return FineTune(network, local, spec.rounds, tuning, local.rate, weighting)
