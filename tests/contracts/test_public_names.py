"""The public face is a sorted list, every name loads, and every name and command is documented."""

import re
from pathlib import Path

import pytest

import suture
from suture.cli.main import app
from suture.methods.registry import METHODS, MethodSpec, settings_of
from suture.study import (
    EvaluationSpec,
    FederationSpec,
    ModelSpec,
    PrivacySpec,
    ProtectionSpec,
    Site,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_all_is_sorted_and_loads():
    assert suture.__all__ == sorted(suture.__all__)
    for name in suture.__all__:
        assert getattr(suture, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        suture.nothing  # noqa: B018


def test_every_public_name_is_in_the_api_page():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in suture.__all__:
        assert f"`suture.{name}" in text, name


def test_every_public_name_is_in_the_api_reference():
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    for name in suture.__all__:
        assert f"\n::: suture.{name}\n" in text, name


COMMANDS = [command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_an_example_and_json(name):
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert f"## suture {name}" in text
    command = next(c for c in app.registered_commands if c.callback.__name__ == name)
    assert command.epilog
    assert command.epilog.startswith("Example: suture " + name)
    assert "as_json" in command.callback.__annotations__


GROUPED = [
    (g.typer_instance, command)
    for g in app.registered_groups
    for command in g.typer_instance.registered_commands
]


@pytest.mark.parametrize(
    ("group", "command"), GROUPED, ids=lambda x: getattr(getattr(x, "info", x), "name", None)
)
def test_every_command_of_a_group_is_documented_with_an_example_and_json(group, command):
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    name = f"{group.info.name} {command.name or command.callback.__name__}"
    assert f"## suture {group.info.name}" in text
    assert f"`suture {name}" in text
    assert group.info.epilog.startswith(f"Example: suture {group.info.name}")
    assert command.epilog.startswith(f"Example: suture {name}")
    assert "as_json" in command.callback.__annotations__


@pytest.mark.parametrize(
    ("table", "spec"),
    [
        ("site", Site),
        ("model", ModelSpec),
        ("method", MethodSpec),
        ("privacy", PrivacySpec),
        ("evaluation", EvaluationSpec),
        ("federation", FederationSpec),
        ("protection", ProtectionSpec),
    ],
)
def test_every_setting_is_documented(table, spec):
    text = (DOCS / "study.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[+{table}\]+.*?(?=^## |\Z)", text, re.M | re.S)
    assert section, f"docs/study.md has no section [{table}]"
    own = settings_of(METHODS) if spec is MethodSpec else {}
    for name in (*spec.model_fields, *own):
        assert f"`{name}`" in section.group(0), f"[{table}] {name} is not documented"
