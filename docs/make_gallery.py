"""Make every page and figure that Suture draws, small, into docs/gallery/: `make gallery`.

Generated patients only. Pages and pictures are made anew each time and are not committed; the
documentation site shows those that are there (docs/site_hooks.py).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GALLERY = Path(__file__).parent / "gallery"
ICU = """
[study]
name = "icu"
outcome = "died_in_hospital"
cohort = { name = "icu", hospitals = 12, patients = 6000 }
[method]
name = "veil"
mode = "secure"
rounds = 8
[privacy]
unit = "patient"
epsilon = 5.0
[evaluation]
seeds = 3
"""
OUTBREAK = """
[study]
name = "outbreak"
outcome = "outcome"
cohort = "outbreak"
[method]
name = "ifedavg"
rounds = 40
local_epochs = 1
share_layers = true
output_layer = "scalar"
"""
STEPS = {
    "report": [
        "run {here}/../../examples/demo.toml --seeds 1 --out demo",
        "report demo --figures {out}",
    ],
    "patient": [
        "run icu.toml --out icu",
        "explain icu --site hospital-003 --patient 20000001 --out {out}",
    ],
    "model-card": ["card icu --out {out}"],
    "interoperability": ["run outbreak.toml --out outbreak", "interop outbreak --out {out}"],
    "ledger": [
        "init files --files",
        "check files/study.toml --sign Gallery",
        "run files/study.toml --out files/run",
        "ledger export --home files/.suture/community --out {out}",
    ],
    "released-histogram": [
        "release histogram files/study.toml --site geriatric --column age --epsilon 0.5 --budget 1"
        " --plot {out}/age.svg"
    ],
    "erasure": ["erase --site community --patient 24 --study files/study.toml"],
    "planning": ["plan table --round-epsilon 1 --rounds 100 --budget 8 --plot {out}/budget.svg"],
    "gradient-inversion": ["attack gradient-inversion --quick --out {out}"],
    "membership": ["attack membership --quick --out {out}"],
    "chapter": ["reproduce chapter --out {out}"],
    "films": [
        "init films --images 40",
        "run films/study.toml --out films/run",
        "explain films/run --regions --images 4 --site hospital-01 --out {out}",
    ],
    "radiograph": ["explain films/run --image {film} --site hospital-01 --out {out}"],
    "fedcvr": ["reproduce fedcvr --quick --out {out}"],
    "veil": ["reproduce veil --quick --out {out}"],
}
"""The commands behind each folder of the gallery, in order; later ones use earlier runs."""

BESIDE = {"report": "demo/report.html", "erasure": "files/.suture/community/erasures/*.html"}
"""Pages that a command writes beside its run or into a site's home."""


def make(wanted: list[str]) -> None:
    """Run the commands of the wanted folders (all of them by default) in a temporary folder."""
    with tempfile.TemporaryDirectory() as work:
        Path(work, "icu.toml").write_text(ICU, encoding="utf-8")
        Path(work, "outbreak.toml").write_text(OUTBREAK, encoding="utf-8")
        for name, commands in STEPS.items():
            if wanted and name not in wanted:
                continue
            out = GALLERY / name
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            for command in commands:
                films = sorted(Path(work, "films", "hospital-01").rglob("*.dcm"))
                words = command.format(out=out, here=GALLERY, film=(films or [""])[0]).split()
                print("suture", *words, file=sys.stderr)
                subprocess.run(
                    [sys.executable, "-m", "suture", *words],
                    cwd=work,
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            shutil.rmtree(out / "runs", ignore_errors=True)  # of a reproduction: no pages in it
            for page in Path(work).glob(BESIDE.get(name, "nothing")):
                shutil.copy(page, out)


if __name__ == "__main__":
    make(sys.argv[1:])
