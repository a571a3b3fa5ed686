"""Who may import whom: the wall is a rule about imports before it is anything else."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import suture
from suture.methods.registry import METHODS

ROOT = Path(suture.__file__).parent

# room -> what it may import from suture, besides itself and errors
ALLOWED = {
    "schema": set(),
    "privacy": {"schema.record", "schema.table"},
    "protection": {"privacy.noise.source", "privacy.door"},
    "models": {"schema.table", "schema.clinical", "schema.outcome"},
    "training": {"models", "privacy.unit", "privacy.noise.source", "privacy.door"},
    "methods": {
        "models",
        "training",
        "protection.secure_sum",
        "privacy.unit",
        "privacy.door",
        "privacy.noise.source",
        "privacy.noise.mechanisms",
        "schema",
    },
    "site": {"schema", "privacy", "protection.envelope", "study", "report.theme"},
    "cohorts": {"schema.table", "site.eicu", "site.images", "study", "methods.registry"},
    "evaluation": {"schema.outcome"},
    "report": {"schema.record"},
    "engine": {
        "schema",
        "privacy",
        "protection",
        "models",
        "training",
        "methods",
        "site",
        "cohorts",
        "evaluation",
        "report",
        "study",
        "result",
    },
    "network": {
        "schema.message",
        "privacy",
        "protection",
        "models.dense",
        "training",
        "methods.base",
        "methods.registry",
        "site",
        "evaluation",
        "engine",
        "study",
    },
    "releases": {"schema", "privacy", "protection.envelope", "site", "report", "engine", "study"},
    "statistics": {
        "schema",
        "privacy",
        "protection.secure_sum",
        "methods.base",
        "methods.declared",
        "methods.registry",
        "models",
        "report",
        "engine",
        "study",
        "result",
    },
    "attacks": {
        "privacy",
        "protection.envelope",
        "models",
        "training",
        "methods",
        "site",
        "cohorts",
        "report",
        "engine",
        "study",
    },
    "explain": {
        "schema",
        "privacy",
        "models",
        "training",
        "methods",
        "site",
        "cohorts",
        "evaluation",
        "report",
        "releases",
        "engine",
        "study",
        "result",
    },
    "interop": {
        "schema",
        "privacy",
        "protection",
        "training",
        "methods",
        "site",
        "evaluation",
        "report",
        "engine",
        "study",
        "result",
    },
    "tune": {"methods", "site", "cohorts", "report", "engine", "study", "privacy.files"},
}
# third-party packages that only some rooms may touch
ONLY = {
    "duckdb": {"site"},
    "stdnum": {"site"},
    "rbcl": {"site"},
    "adbc_driver_manager": {"site"},
    "dp_accounting": {
        "privacy",
        "protection",
        "training",
        "methods",
        "site",
        "engine",
        "releases",
        "statistics",
        "attacks",
    },
    "flwr": {"network", "bench"},
    "torch": {"bench", "models", "training"},
    "opacus": {"bench", "training"},
    "shap": {"explain"},
    "altair": {"report", "papers", "attacks", "explain", "releases", "statistics", "result.py"},
    "typer": {"cli"},
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
            assert not {n for n in names if n == package or n.startswith(package + ".")}, (
                f"{room} imports {package}"
            )
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


def test_one_module_and_the_benchmarks_import_flower():
    """An upgrade of Flower changes `network/flower.py` and nothing else."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(name.split(".")[0] == "flwr" for name in imports(path))
    }
    assert {name for name in found if not name.startswith("bench/")} == {"network/flower.py"}


def test_every_room_of_the_design_has_a_rule():
    rooms = {
        path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()
    }
    assert rooms - set(ALLOWED) == {"papers", "bench", "cli"}


def test_no_module_imports_itself_by_way_of_others():
    """No cycle, and none hidden in a function or under TYPE_CHECKING. The package's own list of
    public names is apart."""
    names = {
        path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for path in FILES
    }
    known = set(names.values()) - {"suture"}
    graph = {
        name: {n if n in known else n.rpartition(".")[0] for n in imports(path)} & known - {name}
        for path, name in names.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_no_assert_outside_tests():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno}"


def _words(path):
    """String constants of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_room_but_methods_and_papers_knows_a_method_by_name(path):
    room = path.relative_to(ROOT).parts[0]
    # bench repeats FedCVR's work beside other packages; a command's help gives examples.
    if room in ("methods", "papers", "bench", "cli"):
        return
    named = re.compile(rf"\b({'|'.join(set(METHODS) - ORDINARY)})\b")
    found = [
        f"{node.lineno}: {node.value[:60]}" for node in _words(path) if named.search(node.value)
    ]
    found += [
        f"{node.lineno}: {node.value}"
        for node in _words(path)
        if node.value in ORDINARY and path.parts[-2:] not in ORDINARY_IN
    ]
    assert not found


ORDINARY = {"additive", "alone", "pooled", "ditto", "moon", "scaffold", "veil"}
"""Names that are also words: only a string that is exactly the name counts."""
ORDINARY_IN: set[tuple[str, ...]] = set()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_probed(path):
    """`getattr` and `hasattr` hide a contract that types should state. The package's own list of
    public names loads lazily."""
    if path == ROOT / "__init__.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
        ), f"{path}:{node.lineno}"
