"""The lock holds one exact version of every dependency, within the ranges of pyproject.toml."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = [
    line
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
EXTRAS = itertools.chain.from_iterable(PROJECT["optional-dependencies"].values())
WANTED = sorted({*PROJECT["dependencies"], *EXTRAS})


def test_the_lock_names_versions_and_no_places():
    for line in LOCK:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", line), line


@pytest.mark.parametrize("wanted", WANTED)
def test_every_dependency_is_locked_within_its_range(wanted):
    requirements = pytest.importorskip("packaging.requirements")
    utils = pytest.importorskip("packaging.utils")
    versions = dict(line.split("==") for line in LOCK)
    locked = {utils.canonicalize_name(name): version for name, version in versions.items()}
    asked = requirements.Requirement(wanted)
    assert asked.specifier.contains(locked[utils.canonicalize_name(asked.name)])
