"""Who may import whom: the wall is a rule about imports before it is anything else."""

import ast
from pathlib import Path

import pytest

import suture

ROOT = Path(suture.__file__).parent

# room -> what it may import from suture, besides itself and errors
ALLOWED = {
    "privacy": set(),
    "site": {"privacy", "protection.envelope"},
    "cohorts": {"site.schema", "site.eicu"},
    "models": {"site.schema"},  # public declarations: no row is read there
    "training": {"models", "privacy.unit", "privacy.mechanisms"},
    "methods": {
        "models",
        "training",
        "protection",
        "privacy.unit",
        "privacy.mechanisms",
        "privacy.selection",
        "site.schema",
        "settings",
    },
    "protection": {"privacy.mechanisms"},
    "evaluation": {"models"},
    "report": {"evaluation", "explanation"},
    "explanation": {"models"},
    "interop": {"site", "privacy", "report", "places", "world", "study", "runfolder"},
    "engines": {
        "federation",
        "gathering",
        "methods",
        "models.dense",
        "training.local",
        "evaluation.metrics",
        "privacy",
        "protection",
        "site",
        "settings",
        "study",
        "describing",
        "places",
        "planning",
        "world",
        "writing",
    },
}
# third-party packages that only some rooms may touch
ONLY = {
    "duckdb": {"site"},
    "adbc_driver_manager": {"site"},
    "dp_accounting": {"privacy", "training", "methods", "site"},
    "flwr": {"engines", "bench"},
    "torch": {"bench", "models", "training", "explanation"},
    "opacus": {"bench", "training"},
    "shap": {"explanation"},
    "altair": {"report", "reproduce", "result.py"},
    "typer": {"cli.py", "commands"},
}


def imports(path: Path) -> set[str]:
    """Full dotted names a file imports, also inside functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path):
    room = path.relative_to(ROOT).parts[0]
    names = imports(path)
    for package, rooms in ONLY.items():
        if room not in rooms:
            assert not {n for n in names if n == package or n.startswith(package + ".")}, f"{room} imports {package}"
    if room not in ALLOWED:
        return
    for name in names:
        if not name.startswith("suture.") or name == "suture.__version__":
            continue
        rest = name.removeprefix("suture.")
        fine = rest.split(".")[0] in {room, "errors"} or any(
            rest == other or rest.startswith(other + ".") for other in ALLOWED[room]
        )
        assert fine, f"{room} may not import {name}"


def test_every_room_of_the_design_has_a_rule():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms - set(ALLOWED) == {"reproduce", "bench", "commands"}


def test_no_assert_outside_tests():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}"
