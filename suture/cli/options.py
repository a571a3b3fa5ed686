"""Groups of commands, one file a group; `suture.cli.main` gathers them. Heavy imports wait until a
command needs them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
import typer.core

# Help is plain text here (rich_markup_mode=None), but Typer escapes its brackets for Rich all the
# same: "\\[default: 5]".
typer.core.HAS_RICH = False

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def group(name: str, help: str, example: str, **options: Any) -> typer.Typer:
    """A sub-application that looks like the rest of the command line.

    >>> group("deid", "Find identifiers.", "suture deid scan rows.csv").info.name
    'deid'
    """
    options = {"no_args_is_help": True, **options}
    return typer.Typer(
        name=name, help=help, epilog=f"Example: {example}", rich_markup_mode=None, **options
    )


def print_json(found: Any) -> None:
    """Exactly one JSON object on standard output."""
    typer.echo(json.dumps(found, allow_nan=False))


def say(text: str) -> None:
    """A line for people, on standard error."""
    typer.echo(text, err=True)
