"""FedCVR as a user would write it on Flower, PyTorch and Opacus, the three libraries that the paper
(arXiv:2603.13293) names: the other side of `suture.bench.fedcvr`.

The program runs in a process of its own, because Flower reads its settings when imported, Ray
starts servers, and neither should stay behind in the process that measures: ``python -m
suture.bench.flower_app FOLDER`` reads ``work.json`` and ``work.npz`` there and writes
``times.json``.

It is as quick as Flower and Opacus allow without being rewritten: every actor keeps its tensors
from round to round, PyTorch has one thread per actor and one actor per core, Opacus uses its
quickest (not cryptographic) noise, and hospitals answer with the model alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from torch import Tensor, nn

    Weights = dict[str, Tensor]

Arrays = dict[str, NDArray[np.float32]]


class Work(TypedDict):
    sizes: list[int]
    sites: list[str]
    rounds: int
    cores: int
    ray: str | None
    local_epochs: int
    batch: int
    rate: float
    clip: float
    noise_multiplier: float
    server_rate: float
    beta1: float
    beta2: float
    tau: float


class Times(TypedDict):
    """What every round took, the warm-up first."""

    at: list[float]
    steps: list[int]
    cpu: list[float]
    auc: list[float | None]


@lru_cache(maxsize=1)
def _work(folder: str) -> Work:
    found: Work = json.loads((Path(folder) / "work.json").read_text())
    return found


@lru_cache(maxsize=1)
def _rows(folder: str) -> Arrays:
    """All hospitals' rows, read once per process: an actor serves whichever hospital comes
    next."""
    with np.load(Path(folder) / "work.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def perceptron(sizes: Sequence[int]) -> nn.Module:
    """Linear layers with ReLU between them."""
    from torch import nn

    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fit(
    folder: str, hospital: int, round_: int, weights: Weights
) -> tuple[Weights, dict[str, Any]]:
    """One hospital's round: Opacus makes model, optimiser and loader private; the rest is ordinary
    training."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    begun = time.process_time()
    torch.set_num_threads(1)
    work, rows = _work(folder), _rows(folder)
    model = perceptron(work["sizes"])
    model.load_state_dict(weights)
    x = torch.from_numpy(rows[f"x{hospital}"])
    y = torch.from_numpy(rows[f"y{hospital}"].astype(np.float32))
    private, optimiser, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=work["rate"]),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=work["batch"]),
        noise_multiplier=work["noise_multiplier"],
        max_grad_norm=work["clip"],
        poisson_sampling=True,
    )
    loss = torch.nn.BCEWithLogitsLoss()
    steps = 0
    # The first round warms the actors up and is not measured, so one epoch of it is enough.
    for _ in range(1 if round_ == 1 else work["local_epochs"]):
        for inputs, labels in loader:
            optimiser.zero_grad()
            loss(private(inputs)[:, 0], labels).backward()
            optimiser.step()
            steps += 1
    cpu = time.process_time() - begun
    return model.state_dict(), {"num-examples": 1, "steps": steps, "cpu": cpu}


def _client(folder: str) -> ClientApp:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def train(message: Any, context: Context) -> Message:
        # By name, so that the actor's own copy of this module answers and its caches live from
        # round to round.
        import torch  # noqa: F401  (Flower converts to tensors only where PyTorch is already imported)

        weights = message.content["arrays"].to_torch_state_dict()
        hospital = int(context.node_config["partition-id"])
        round_ = int(message.content["config"]["server-round"])
        trained, metrics = fit(folder, hospital, round_, weights)
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=message)

    app.train()(train)
    return app


def _evaluate(folder: str, weights: Weights) -> float | None:
    """Every round's metrics of all test patients and of each hospital's, by the function that
    Suture's rounds use."""
    import torch

    from suture.evaluation.metrics import light

    work, rows = _work(folder), _rows(folder)
    model = perceptron(work["sizes"])
    model.load_state_dict(weights)
    labels = [rows[f"test_y{i}"] for i in range(len(work["sites"]))]
    with torch.no_grad():
        risks = [
            torch.sigmoid(model(torch.from_numpy(rows[f"test_x{i}"]))[:, 0]).numpy()
            for i in range(len(labels))
        ]
    for y, p in zip(labels, risks, strict=True):
        light(y, p, 0.5)
    return light(np.concatenate(labels), np.concatenate(risks), 0.5)["auc"]


def _server(folder: str, times: Times) -> ServerApp:
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAdam

    work = _work(folder)

    def gather(answers: Any, _: str) -> MetricRecord:
        """Steps really taken by all hospitals, and the processor time they spent on them."""
        metrics = [answer["metrics"] for answer in answers]
        if len(metrics) != len(work["sites"]):
            raise RuntimeError(
                f"{len(metrics)} of {len(work['sites'])} hospitals answered; see the log above"
            )
        times["steps"].append(sum(int(metric["steps"]) for metric in metrics))
        times["cpu"].append(sum(float(metric["cpu"]) for metric in metrics))
        return MetricRecord()

    def evaluate(_: int, arrays: ArrayRecord) -> None:
        times["auc"].append(_evaluate(folder, arrays.to_torch_state_dict()))
        times["at"].append(time.perf_counter())

    def main(grid: Grid, _: Context) -> None:
        hospitals = len(work["sites"])
        strategy = FedAdam(
            fraction_evaluate=0.0,
            min_train_nodes=hospitals,
            min_available_nodes=hospitals,
            eta=work["server_rate"],
            eta_l=work["rate"],
            beta_1=work["beta1"],
            beta_2=work["beta2"],
            tau=work["tau"],
            train_metrics_aggr_fn=gather,
        )
        start = ArrayRecord(perceptron(work["sizes"]).state_dict())
        strategy.start(
            grid=grid, initial_arrays=start, num_rounds=work["rounds"] + 1, evaluate_fn=evaluate
        )

    app = ServerApp()
    app.main()(main)
    return app


def simulate(folder: str) -> dict[str, object]:
    """Run Flower's simulation (on Ray, one CPU per hospital, all ``cores`` busy); returns what each
    round took."""
    from flwr.simulation import run_simulation

    times: Times = {"at": [], "steps": [], "cpu": [], "auc": []}
    work = _work(folder)
    ray = {"_temp_dir": work["ray"]} if work["ray"] else {}
    run_simulation(
        server_app=_server(folder, times),
        client_app=_client(folder),
        num_supernodes=len(work["sites"]),
        backend_config={
            "init_args": {"num_cpus": work["cores"], "object_store_memory": 100_000_000, **ray},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    rounds = [after - before for before, after in pairwise(times["at"])]
    if len(times["steps"]) != len(rounds):
        raise RuntimeError(
            f"{len(rounds)} rounds ran, but hospitals answered in {len(times['steps'])} only; see "
            "the log above"
        )
    # Entry 0 is the warm-up round.
    return {
        "seconds": rounds[1:],
        "steps": times["steps"][1:],
        "cpu": times["cpu"][1:],
        "auc": times["auc"][-1],
    }


if __name__ == "__main__":
    measured = simulate(sys.argv[1])
    (Path(sys.argv[1]) / "times.json").write_text(json.dumps(measured))
