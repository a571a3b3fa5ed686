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


COMMANDS = [
    (file.typer_instance.info.name, command)
    for file in app.registered_groups
    for command in file.typer_instance.registered_commands
]


def words(group, command):
    """A command as it is typed, without ``suture``."""
    return " ".join(filter(None, (group, command.name or command.callback.__name__)))


@pytest.mark.parametrize(
    ("group", "command"), COMMANDS, ids=[words(*command) for command in COMMANDS]
)
def test_every_command_is_documented_with_an_example_and_json(group, command):
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    name = words(group, command)
    assert f"## suture {group or name}" in text
    assert f"`suture {name}" in text
    assert command.epilog.startswith(f"Example: suture {name}")
    assert "as_json" in command.callback.__annotations__


def test_every_group_has_an_example():
    groups = [file.typer_instance.info for file in app.registered_groups]
    for group in groups:
        assert not group.name or group.epilog.startswith(f"Example: suture {group.name}")


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
