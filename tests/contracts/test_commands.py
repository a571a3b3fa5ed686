"""Every command, as it is offered: an example, one JSON object on request, and help that reads as
it was written."""

from collections.abc import Iterator

import click
import pytest
import typer
from typer.testing import CliRunner

from suture.cli.main import app


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something, groups opened."""
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield words
    for name, one in inner.items():
        yield from commands(one, (*words, name))


ALL = sorted(commands(typer.main.get_command(app)))


def test_the_walk_finds_the_commands():
    assert ("run",) in ALL
    assert ("ledger", "export") in ALL


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_has_an_example_and_json_and_no_markup(words):
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "Example: suture " + " ".join(words) in done.output
    assert "--json" in done.output
    assert "\\[" not in done.output
