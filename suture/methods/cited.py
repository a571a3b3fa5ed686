"""What to cite for each method, in result.json and at the foot of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suture.study import Study


_FEDOPT = ("Adaptive Federated Optimization", "Reddi et al.", 2021, "arXiv:2003.00295")
_VEIL = (
    "VEIL: A Framework for Differentially Private, Interpretable, and Communication-Efficient "
    "Federated Learning",
    "Vallabhaneni",
    2025,
    "paper 000",
)
REFERENCES = {
    "fedavg": (
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "McMahan et al.",
        2017,
        "arXiv:1602.05629",
    ),
    "fedprox": (
        "Federated Optimization in Heterogeneous Networks",
        "Li et al.",
        2020,
        "arXiv:1812.06127",
    ),
    "fedadam": (
        "A Robust Framework for Secure Cardiovascular Risk Prediction (FedCVR)",
        "Tertulino, Alencar",
        2026,
        "arXiv:2603.13293",
    ),
    "fedyogi": _FEDOPT,
    "fedadagrad": _FEDOPT,
    "ifedavg": (
        "iFedAvg: Interpretable Data-Interoperability for Federated Learning",
        "Roschewitz, Hartley, Corinzia, Jaggi",
        2021,
        "arXiv:2107.06580",
    ),
    "apfl": (
        "Adaptive Personalized Federated Learning",
        "Deng, Kamani, Mahdavi",
        2020,
        "arXiv:2003.13461",
    ),
    "ditto": (
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li, Hu, Beirami, Smith",
        2021,
        "arXiv:2012.04221",
    ),
    "finetune": (
        "Salvaging Federated Learning by Local Adaptation",
        "Yu, Bagdasaryan, Shmatikov",
        2020,
        "arXiv:2002.04758",
    ),
    "scaffold": (
        "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        "Karimireddy et al.",
        2020,
        "arXiv:1910.06378",
    ),
    "fedsgd": (
        "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure "
        "Aggregation",
        "Kairouz, Liu, Steinke",
        2021,
        "arXiv:2102.06387",
    ),
    "moon": ("Model-Contrastive Federated Learning", "Li, He, Song", 2021, "arXiv:2103.16257"),
    "veil": _VEIL,
    "veil-printed": _VEIL,
    "fedcluster": (
        "FedDDB: Clustered Federated Learning based on Data Distribution Difference",
        "You et al.",
        2022,
        "ACAI 2022",
    ),
}
DP_REFERENCES = (
    ("Deep Learning with Differential Privacy", "Abadi et al.", 2016, "arXiv:1607.00133"),
    (
        "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
        "Mironov, Talwar, Zhang",
        2019,
        "arXiv:1908.10530",
    ),
    (
        "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions",
        "Doroshenko et al.",
        2022,
        "arXiv:2207.04380",
    ),
)


def references(study: Study) -> list[dict[str, Any]]:
    """The papers behind a study's methods and, where it promises something, behind the promise."""
    rows = [REFERENCES[name] for name in study.methods if name in REFERENCES]
    if study.privacy is not None:
        rows += DP_REFERENCES
    keys = ("title", "authors", "year", "where")
    return [dict(zip(keys, row, strict=True)) for row in dict.fromkeys(rows)]
