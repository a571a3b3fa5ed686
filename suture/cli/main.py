"""The command line: arguments in, one library call, exit code out. One file per command.

With ``--json`` a command prints exactly one JSON object on standard output; progress and messages
go to standard error. Exit codes: 0 done (also when a budget stopped training early), 1-6 an error
of `suture.errors`, 7 done, but some site missed rounds, 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from suture.cli.options import answer, say
from suture.errors import RunError, SutureError
from suture.privacy.software import VERSION

# In the order of `suture --help`.
COMMANDS = (
    "run", "check", "report", "card", "reproduce", "bench", "init", "audit", "rights", "explain",
    "interop", "overlap", "tune", "plan", "methods", "describe", "charter", "ledger", "attack",
    "release", "deid", "hub", "site",
)  # fmt: skip

app = typer.Typer(
    name="suture",
    help="Hospitals train one model together while every record stays behind its own wall.",
    epilog="Example: suture init demo && suture run demo/study.toml",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for file in COMMANDS:
    app.add_typer(import_module(f"suture.cli.{file}").app)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"suture {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a user's mistake ends with a message and an exit code, never with a
    traceback."""
    try:
        app()
    except SutureError as error:
        if "--json" in sys.argv:
            answer({"error": {"kind": type(error).__name__, "message": str(error)}}, True)
        say(f"suture: {error}")
        raise SystemExit(error.exit_code) from None
    except MemoryError:
        say("suture: out of memory; use fewer threads or smaller tables")
        raise SystemExit(RunError.exit_code) from None


if __name__ == "__main__":
    main()
