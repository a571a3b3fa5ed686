"""One paper a file. `build` turns a study's settings into a method object; the list is written out,
not registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.methods.base import Method
    from suture.methods.fedopt import Server
    from suture.models.network import Network
    from suture.schema.table import Schema
    from suture.study import MethodSpec
    from suture.training.local import Local

METHODS = (
    "fedavg",
    "fedprox",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedsgd",
    "fedcluster",
    "ifedavg",
    "apfl",
    "ditto",
    "finetune",
    "scaffold",
    "moon",
    "fairfed",
    "veil",
    "veil-printed",
    "alone",
    "pooled",
)

NOT_PRIVATE = {
    "veil-printed": "veil-printed is not private: signs are released unprotected, so no budget pays for it. Use veil, which "
    "has a proof, or leave out [privacy]; its method.claimed_epsilon is shown as claimed",
    "moon": "moon is not private: its contrastive loss is trained without clipping or noise, so no budget pays for it. Use "
    "fedavg, fedprox or scaffold, which have a proof, or leave out [privacy]",
}
"""Methods that cannot keep a promise, and what to do instead: a study with [privacy] refuses
them."""


ENSEMBLED = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fairfed")
"""Methods that end in one global model, beside which a site may keep its own
(``method.ensemble``)."""


@dataclass(frozen=True)
class Public:
    """What everybody knows about a federation before any row is read."""

    schema: Schema | None = None
    sites: int = 1
    patients: int = 1 << 40
    sizes: Mapping[str, int] = field(default_factory=dict)


def build(
    name: str, spec: MethodSpec, network: Network, local: Local, public: Public | None = None
) -> Method:
    """The method a study names, with the study's settings; some also use what is ``public`` about
    the federation.

    >>> from suture.models.dense import Dense
    >>> from suture.study import MethodSpec
    >>> from suture.training.local import Local
    >>> build("fedadam", MethodSpec(), Dense((6, 1)), Local()).label
    'FedAdam (FedCVR)'
    >>> build("fedavg", MethodSpec(ensemble=True), Dense((6, 1)), Local()).label
    'FedAvg, ensemble'
    """
    method = _build(name, spec, network, local, public)
    if not spec.ensemble or name not in ENSEMBLED:
        return method
    from suture.methods.ensemble import Ensemble

    fairness = spec.fairness if name == "fairfed" else 0.0
    return Ensemble(
        method,
        network,
        local,
        spec.rounds,
        spec.ensemble_epochs,
        spec.ensemble_rate,
        fairness,
        spec.ensemble_fairness,
    )


def _build(
    name: str, spec: MethodSpec, network: Network, local: Local, public: Public | None
) -> Method:
    from suture.methods.alone import Alone
    from suture.methods.fedavg import FedAvg
    from suture.methods.fedcluster import FedCluster
    from suture.methods.fedopt import FedOpt
    from suture.methods.fedprox import fedprox
    from suture.methods.moon import Moon
    from suture.methods.pooled import pooled
    from suture.methods.scaffold import Scaffold
    from suture.models.dense import dense_only

    if name == "fedavg":
        return FedAvg(network, local, spec.weighting or "size", momentum=spec.server_momentum)
    if name == "fedprox":
        return fedprox(network, local, spec.proximal, spec.weighting or "size")
    if name in ("fedadam", "fedyogi", "fedadagrad"):
        weighting = spec.weighting or "uniform"
        return FedOpt(
            network,
            local,
            cast("Server", name),
            weighting,
            spec.server_rate,
            spec.beta1,
            spec.beta2,
            spec.tau,
        )
    if name == "fedsgd":
        return _fedsgd(spec, network, local, public or Public())
    if name == "fedcluster":
        return FedCluster(network, local, spec.clusters, spec.warmup, spec.weighting or "size")
    if name in ("ifedavg", "apfl", "ditto", "finetune"):
        return _personal(name, spec, network, local)
    if name == "scaffold":
        return Scaffold(network, local, spec.weighting or "size")
    if name == "moon":
        return Moon(
            dense_only(network, "method 'moon'"),
            local,
            spec.contrast,
            spec.temperature,
            spec.weighting or "size",
        )
    if name == "fairfed":
        return _fair(spec, network, local, public)
    if name in ("veil", "veil-printed"):
        return _veil(name, spec, network, local, public or Public())
    if name == "alone":
        return Alone(network, local)
    if name == "pooled":
        return pooled(network, local)
    raise StudyError(f"method.name: unknown method {name!r}; expected one of {', '.join(METHODS)}")


def _personal(name: str, spec: MethodSpec, network: Network, local: Local) -> Method:
    """The methods that leave every site with a model of its own."""
    from suture.methods.apfl import Apfl
    from suture.methods.ditto import Ditto
    from suture.methods.finetune import FineTune
    from suture.methods.ifedavg import IFedAvg
    from suture.models.dense import dense_only
    from suture.training.affine import Layers

    weighting = spec.weighting or "uniform"
    if name == "finetune":
        tuning = max(1, round(spec.rounds * spec.tuning))
        return FineTune(network, local, spec.rounds, tuning, local.rate, weighting)
    dense = dense_only(network, f"method {name!r}")
    if name == "ifedavg":
        layers = Layers(spec.input_layer, spec.output_layer, spec.layer_spread)
        return IFedAvg(dense, local, layers, spec.share_layers, weighting)
    if name == "apfl":
        return Apfl(dense, local, spec.alpha, spec.alpha_adaptive, weighting)
    return Ditto(dense, local, spec.proximal, weighting)


def _fedsgd(spec: MethodSpec, network: Network, local: Local, public: Public) -> Method:
    from suture.methods.fedopt import FedOpt
    from suture.methods.fedsgd import FedSgd
    from suture.models.dense import dense_only

    if spec.participation < 1:
        raise StudyError(
            "method.participation: fedsgd needs every site in every round; set it to 1"
        )
    if local.dropout:
        raise StudyError("model.dropout: fedsgd takes whole gradients; set it to 0")
    dense = dense_only(network, "method 'fedsgd'")
    server = FedOpt(
        dense, local, "fedadam", "size", spec.server_rate, spec.beta1, spec.beta2, spec.tau
    )
    return FedSgd(dense, local, server, public.sites, public.patients, spec.honest)


def _fair(spec: MethodSpec, network: Network, local: Local, public: Public | None) -> Method:
    from suture.methods.fairfed import FairFed

    if spec.secure_rates and spec.participation < 1:
        raise StudyError(
            "method.participation: the secure sum of fairfed's rates needs every site in every "
            "round; set it to 1, or "
            "secure_rates = false"
        )
    known = public or Public()
    protected = known.schema.protected if known.schema else None
    groups = protected.values if protected else ("first", "second") if public is None else ()
    return FairFed(
        network,
        local,
        groups,
        spec.fairness,
        spec.fairness_share,
        spec.gap_threshold,
        spec.boost,
        spec.rates_every,
        spec.secure_rates,
        spec.honest,
        known.sites,
        known.patients,
        spec.server_momentum,
    )


def _veil(name: str, spec: MethodSpec, network: Network, local: Local, public: Public) -> Method:
    from suture.methods.veil.method import Veil
    from suture.methods.veil.printed import VeilPrinted
    from suture.methods.veil.teams import Teams
    from suture.models.concepts import dictionary, plain
    from suture.models.dense import dense_only

    width = dense_only(network, f"method {name!r}").inputs
    if name == "veil-printed":
        quorum = 0.1 if spec.quorum is None else spec.quorum
        picks = min(spec.picks, width)
        return VeilPrinted(
            width, local, spec.rounds, picks, quorum, spec.server_rate, spec.claimed_epsilon
        )
    known = plain(width) if public.schema is None else dictionary(public.schema)
    if spec.mode == "secure" and spec.participation < 1:
        raise StudyError(
            "method.participation: the secure mode of veil needs every site in every round; set it "
            "to 1"
        )
    return Veil(
        known,
        spec.mode,
        spec.rounds,
        min(spec.picks, len(known)),
        2.0 if spec.quorum is None else spec.quorum,
        spec.concepts,
        spec.server_rate,
        public.sites,
        public.patients,
        spec.honest,
        Teams.of(public.sizes, spec.teams if spec.mode == "secure" else 1),
    )
