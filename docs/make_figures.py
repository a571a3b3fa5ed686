"""The figures that the README shows: `make figures` runs the demo study, writes
docs/figures/demo.json and puts its table into README.md.

`tests/docs/test_readme_figures.py` fails when the README shows other figures than the file, or when the
demo study no longer gives them.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from suture.privacy.software import software

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "figures" / "demo.json"
COMMAND = "suture run examples/demo.toml"
METRICS = {"auc": "AUC", "auprc": "AUPRC", "recall": "recall", "f1": "F1", "ece": "ECE"}
MARKS = "<!-- docs/figures/demo.json -->", "<!-- end -->"


def measured(study: Path, out: Path) -> dict:
    """Run the study and take from its result what the README shows."""
    command = [sys.executable, "-m", "suture", "run", str(study), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    methods = {}
    for name, found in result["methods"].items():
        metrics, intervals = found["metrics"]["global"], found["metrics"]["intervals"]["global"]
        methods[name] = {
            "label": found["label"],
            "epsilon": found["privacy"]["epsilon"],
            "bytes_up": found["communication"]["bytes_up"],
            "metrics": {key: metrics[key] for key in METRICS},
            "halves": {key: (intervals[key][1] - intervals[key][0]) / 2 for key in METRICS},
        }
    return {"command": COMMAND, "software": software(), "methods": methods}


def table(found: dict) -> str:
    """The README's table in Markdown."""
    head = ["method", *METRICS.values(), "proven ε", "sent by all hospitals"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for one in found["methods"].values():
        cells = [f"{one['metrics'][key]:.3f} ± {one['halves'][key]:.3f}" for key in METRICS]
        sent = f"{one['bytes_up'] / 1000:,.1f} kB"
        lines.append(
            " | ".join([f"| {one['label']}", *cells, f"{one['epsilon']:.2f}", sent]) + " |"
        )
    return "\n".join(lines)


def shown(readme: str) -> str:
    """The table as it stands in the README."""
    return readme.partition(MARKS[0])[2].partition(MARKS[1])[0].strip()


def main() -> None:
    """Measure, write the file and the README's table."""
    with tempfile.TemporaryDirectory() as work:
        found = measured(ROOT / "examples" / "demo.toml", Path(work, "demo"))
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    block = f"{MARKS[0]}\n{table(found)}\n{MARKS[1]}"
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    readme.write_text(re.sub(pattern, lambda _: block, text, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    main()
