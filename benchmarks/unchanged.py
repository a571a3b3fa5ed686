"""Do results stay the same, byte for byte, when code moves? Every method and every quick
reproduction, before and after.

    python benchmarks/unchanged.py record before    # at the old commit
    python benchmarks/unchanged.py record after     # at the new one
    python benchmarks/unchanged.py compare before after
    python benchmarks/unchanged.py compare before after /study/method/    # a listed change
    python benchmarks/unchanged.py record after fedavg veil-secure paper-veil    # some cases only

`result.json` is compared without what a clock, a machine or a path decides (`VOLATILE`); models are
compared whole. Runs over a network under masks are left out: sites draw fresh keys there, so no two
of them are alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

METHODS = [
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
]
NOT_PRIVATE = ("moon", "veil-printed")
ENSEMBLES = ("fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad", "fairfed")
MASKED = ("fedavg", "fedadam", "fedsgd", "ifedavg", "veil", "fairfed")
NETWORKED = ("fedavg", "fedadam", "ifedavg", "scaffold", "veil")
PAPERS = ("veil", "fedcvr", "chapter", "ifedavg", "radiology")
VOLATILE = {
    "seconds",
    "mask_seconds",
    "created",
    "command",
    "software",
    "machine",
    "versions",
    "finished",
    "started",
    "platform",
    "time",
}


def study(method: str, /, *, private: bool = True, **tables: dict[str, Any]) -> str:
    """A study file's text: 600 generated patients at five hospitals, a few rounds."""
    lines = ['[study]\nname = "unchanged"\noutcome = "high_risk"\nseed = 7']
    lines.append('cohort = { name = "cardio", patients = 600 }\n[model]\nhidden = [6]')
    own = {} if method in ("fedsgd", "veil") else {"local_epochs": 1}  # they train no network
    settings = {"name": method, "rounds": 4, **own, **tables.pop("method", {})}
    tables = {"method": settings, "evaluation": {"seeds": 2}, **tables}
    if private and method not in NOT_PRIVATE:
        tables["privacy"] = {"unit": "patient", "epsilon": 8.0}
    for name, values in tables.items():
        lines.append(
            f"[{name}]\n"
            + "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        )
    text = "\n".join(lines) + "\n"
    return text + (SCHEMA if method == "fairfed" else "")


SCHEMA = """[schema]
patient = "patient_id"
groups = ["sex"]
protected = { column = "sex", values = ["F", "M"] }

[schema.features]
age = { kind = "number", low = 28, high = 77, unit = "years" }
systolic_bp = { kind = "number", low = 75, high = 195, unit = "mmHg" }
diastolic_bp = { kind = "number", low = 40, high = 125, unit = "mmHg" }
cholesterol = { kind = "number", low = 75, high = 375, unit = "mg/dL" }
smoker = { kind = "flag" }
diabetic = { kind = "flag" }
"""
"""fairfed needs to know the two groups."""


def cases() -> dict[str, list[str]]:
    """Every case: its name, the study's text or None, and the command's arguments after the
    study."""
    found: dict[str, list[str]] = {}
    for method in METHODS:
        found[f"{method}"] = [study(method)]
        found[f"{method}-open"] = [study(method, private=False)]
    for method in ENSEMBLES:
        found[f"{method}-ensemble"] = [
            study(method, method={"ensemble": True, "ensemble_epochs": 2})
        ]
        found[f"{method}-ensemble-decay"] = [
            study(
                method,
                method={"ensemble": True, "ensemble_epochs": 2, "rate_decay": 0.5, "rate_steps": 1},
            )
        ]
    for method in MASKED:
        found[f"{method}-masked"] = [study(method, protection={"sum": "masked"})]
    found["veil-secure"] = [study("veil", method={"mode": "secure"}, protection={"sum": "masked"})]
    found["fedavg-robust"] = [study("fedavg", protection={"aggregation": "median"})]
    found["fedadam-folds"] = [study("fedadam", evaluation={"folds": 2})]
    found["fedavg-part"] = [study("fedavg", method={"participation": 0.5})]
    for method in NETWORKED:
        found[f"{method}-flower"] = [study(method, evaluation={"seeds": 1}), "--engine", "flower"]
    return found


def plain(node: Any) -> Any:
    """The same values without what differs between two runs of the same code."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items() if key not in VOLATILE}
    return [plain(value) for value in node] if isinstance(node, list) else node


def call(arguments: list[str], where: Path) -> str:
    """The command line in a process of its own; the last line of its errors, or nothing."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.getcwd(),
        "SUTURE_WITNESS": str(where / "witness"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "suture", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        ""
        if done.returncode == 0
        else f"exit {done.returncode}: " + done.stderr.strip().replace(str(where), "")
    )


def record(folder: Path, only: list[str]) -> None:
    """Run every case, or only some, and keep what each gave."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (text, *options) in cases().items():
        if (folder / f"{name}.json").exists() or (only and name not in only):
            continue
        (folder / f"{name}.toml").write_text(text)
        out = folder / "runs" / name
        failed = call(["run", str(folder / f"{name}.toml"), "--out", str(out), *options], folder)
        keep(folder / f"{name}.json", failed, out)
    for paper in PAPERS:
        if not (folder / f"paper-{paper}.json").exists() and (not only or f"paper-{paper}" in only):
            out = folder / "runs" / f"paper-{paper}"
            keep(
                folder / f"paper-{paper}.json",
                call(["reproduce", paper, "--quick", "--out", str(out)], folder),
                out,
            )


def keep(file: Path, failed: str, out: Path) -> None:
    """One case's results, models and tables in one file."""
    kept: dict[str, Any] = {"failed": failed}
    for path in sorted(out.rglob("*")):
        inside = str(path.relative_to(out))
        if path.name == "result.json":
            kept[inside] = plain(json.loads(path.read_text()))
        elif path.suffix == ".npz" and "checkpoint" not in inside:
            with np.load(path) as arrays:
                kept[inside] = {
                    key: hashlib.sha256(arrays[key].tobytes()).hexdigest()
                    for key in arrays
                    if key not in VOLATILE
                }
        elif path.suffix == ".csv":
            kept[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    file.write_text(json.dumps(kept, indent=1, sort_keys=True))
    print(file.stem, failed[:120] or "ok", flush=True)


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Paths at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for key in sorted({*one, *other})
            for line in differences(one.get(key, "absent"), other.get(key, "absent"), f"{at}/{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line for i in range(len(one)) for line in differences(one[i], other[i], f"{at}/{i}")
        ]
    return [] if one == other else [f"{at}: {one!r:.60} / {other!r:.60}"]


def compare(one: Path, other: Path, explained: list[str]) -> int:
    """Print one row per case of ``other``: same, or what differs; returns how many cases differ other
    than ``explained``, which holds beginnings of the paths of listed changes."""
    names = sorted(path.stem for path in other.glob("*.json"))
    changed, same = 0, 0
    for name in names:
        files = [folder / f"{name}.json" for folder in (one, other)]
        found = [json.loads(file.read_text()) if file.exists() else "absent" for file in files]
        lines = differences(*found)
        counts = {key: sum(key in line.split(": ")[0] for line in lines) for key in explained}
        left = [line for line in lines if not any(key in line.split(": ")[0] for key in explained)]
        changed += bool(left)
        same += not lines
        listed = ", ".join(f"{key} ({count})" for key, count in counts.items() if count)
        print(f"{name} | {'DIFFERS' if left else 'same'}{f' but for {listed}' if listed else ''}")
        for line in left[:8]:
            print(f"    {line}")
        if len(left) > 8:
            print(f"    {len(left) - 8} more")
    print(f"{same} of {len(names)} cases are the same, byte for byte; {changed} differ unexplained")
    return changed


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]).resolve(), sys.argv[3:])
    else:
        sys.exit(1 if compare(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]) else 0)
