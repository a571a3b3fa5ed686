"""The benchmarks measure the work they say they measure; times are not asserted, machines
differ."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from suture import bench
from suture.bench import fedcvr, flower_app
from suture.errors import MissingExtra, RunError

ROOT = Path(__file__).resolve().parents[2]
SIZES = [13_130, 4_730, 9_250, 1_620, 1_270]
STEPS_A_ROUND = 5 * (411 + 148 + 290 + 51 + 40)
"""Five epochs of ceil(N / 32) steps at each hospital of Table 3."""


def test_the_work_is_the_papers(tmp_path: Path) -> None:
    fedcvr._write_work(fedcvr.work(rounds=2), tmp_path)
    work = json.loads((tmp_path / "work.json").read_text())
    rows = np.load(tmp_path / "work.npz")
    assert [rows[f"x{i}"].shape for i in range(5)] == [(size, 6) for size in SIZES]
    assert [len(rows[f"test_y{i}"]) for i in range(5)] == [2626, 946, 1850, 324, 254]
    settings = (
        "sizes",
        "local_epochs",
        "batch",
        "rate",
        "clip",
        "noise_multiplier",
        "server_rate",
        "rounds",
    )
    assert [work[name] for name in settings] == [[6, 64, 32, 1], 5, 32, 0.01, 1.0, 1.0, 0.1, 2]
    assert (work["beta1"], work["beta2"], work["tau"]) == (0.9, 0.999, 1e-3)


def test_sutures_rounds_leave_the_warm_up_out() -> None:
    found = fedcvr.suture_rounds(fedcvr.work(rounds=2, patients=300))
    # 131, 47, 93, 16 and 13 patients: 5 + 2 + 3 + 1 + 1 steps an epoch, five epochs, two measured
    # rounds
    assert found["steps"] == 12 * 5 * 2
    assert found["seconds"] > 0
    assert 0 <= found["auc"] <= 1


@pytest.mark.slow
def test_sutures_steps_at_the_true_sizes() -> None:
    assert fedcvr.suture_rounds(fedcvr.work(rounds=1))["steps"] == STEPS_A_ROUND == 4_700


@pytest.mark.filterwarnings(
    "ignore"
)  # Opacus warns about its own hooks and about noise that is not cryptographic
def test_opacus_takes_the_same_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'suture[torch]'")
    pytest.importorskip("opacus", reason="pip install 'suture[torch]'")
    fedcvr._write_work(fedcvr.work(rounds=1, patients=300), tmp_path)
    start = {
        name: value.clone()
        for name, value in flower_app.perceptron([6, 64, 32, 1]).state_dict().items()
    }
    warm, metrics = flower_app.fit(str(tmp_path), 0, 1, start)
    assert metrics["steps"] == 5  # ceil(131 / 32), one epoch
    trained, metrics = flower_app.fit(str(tmp_path), 2, 2, warm)
    assert metrics["steps"] == 3 * 5
    assert set(trained) == set(start)
    assert all(not torch.equal(trained[name], start[name]) for name in start)
    assert 0 <= flower_app._evaluate(str(tmp_path), trained) <= 1  # type: ignore[operator]


@pytest.mark.slow
def test_side_by_side_with_flower() -> None:
    for name in fedcvr.NEEDED:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed: make .venv/bench")
    said: list[str] = []
    found = fedcvr.measure(rounds=1, patients=300, say=said.append)
    assert found["flower_steps"] == 60
    assert found["suture_steps"] == 2 * 60  # once before Flower, once after
    assert found["fedcvr_vs_flower_opacus"] == pytest.approx(
        found["flower_us_per_step"] / found["suture_us_per_step"]
    )
    assert len(said) == 3


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedcvr, "NEEDED", ("numpy", "no_such_library"))
    with pytest.raises(MissingExtra, match=r"needs no_such_library: pip install .suture\[bench\]"):
        fedcvr.measure()
    monkeypatch.setattr(bench, "_PARTS", {"flower": bench._PARTS["flower"]})
    said: list[str] = []
    found = bench.measure(say=said.append)
    assert found["fedcvr_vs_flower_opacus"] is None
    assert "pip install" in found["skipped"]["fedcvr_vs_flower_opacus"]
    assert any("skipped" in text for text in said)


def test_a_flower_side_that_fails_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "work.json").write_text("{}")
    with pytest.raises(RunError, match=r"exit code 1; the end of its log:[\s\S]*Error"):
        fedcvr._run_app(tmp_path)


def test_nothing_is_reported_to_anyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, dict[str, str]] = {}

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        started["env"] = env
        raise OSError("not here")

    monkeypatch.setattr(fedcvr.subprocess, "Popen", start)
    with pytest.raises(OSError, match="not here"):
        fedcvr._run_app(tmp_path)
    environment = started["env"]
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["FLWR_HOME"].startswith(str(tmp_path))


def test_the_table_is_six_methods_five_seeds_a_hundred_rounds() -> None:
    study = fedcvr.table()
    assert sorted(study.methods) == [
        "fedadagrad",
        "fedadam",
        "fedavg",
        "fedcluster",
        "fedprox",
        "fedyogi",
    ]
    assert (study.evaluation.seeds, study.method.rounds, study.method.local_epochs) == (5, 100, 5)
    assert study.cohort is not None
    assert study.cohort.options().get("patients", 30_000) == 30_000


def test_part_of_the_table_is_named_as_scaled() -> None:
    tiny = fedcvr.table(quick=True).replace(
        cohort={"patients": 300}, method={"rounds": 2, "local_epochs": 1}
    )
    found = fedcvr.measure_table(study=tiny)
    assert found["fedcvr_table_seconds"] is None
    assert found["seconds_scaled_to_all_rounds_and_seeds"] == pytest.approx(250 * found["seconds"])
    assert len(found["auc"]) == 6


def test_measure_always_has_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_PARTS", {})
    found = bench.measure(quick=True)
    assert all(found[key] is None for key in bench.KEYS)
    assert "fedcvr_table_seconds" in found["skipped"]
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["numpy"] == np.__version__
    json.dumps(found, allow_nan=False)


def test_every_script_and_key_is_documented() -> None:
    listed = (ROOT / "benchmarks" / "README.md").read_text()
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        assert f"python benchmarks/{script.name}" in listed
    explained = (ROOT / "docs" / "benchmarks.md").read_text()
    for key in bench.KEYS:
        assert f"`{key}`" in explained
