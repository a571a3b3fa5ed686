"""``suture audit``: the two-world test on what a site really sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, print_json, say
from suture.errors import PrivacyError

EXAMPLE = "Example: suture audit study.toml --trials 1000 --rate 0.001 --json"


def audit(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    site: Annotated[str | None, typer.Option(help="Which site. Default: the smallest.")] = None,
    trials: Annotated[int, typer.Option(min=40, help="Runs per world and test.")] = 1000,
    rate: Annotated[
        float, typer.Option(help="Probability of a false alarm, all tests together.")
    ] = 0.001,
    messages: Annotated[
        int, typer.Option(min=0, help="Messages drawn in search of repeated noise; 0: none.")
    ] = 250_000,
    threads: Annotated[int | None, typer.Option(help="Threads to use. Default: all cores.")] = None,
    as_json: Json = False,
) -> None:
    """Compare measured with claimed epsilon, at the site, on its real path; nothing leaves. Exit
    code 4 when broken."""
    from suture.attacks.audit_site import audit_study

    found = audit_study(
        study, site=site, trials=trials, rate=rate, messages=messages, threads=threads, say=say
    )
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found["broken"]:
        raise typer.Exit(PrivacyError.exit_code)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    size = f"{found['patients']:,} patients"
    table = Table(
        title=f"{found['study']}, {found['method']} at {found['site']} ({size})",
        title_justify="left",
    )
    for name, side in (
        ("test", "left"),
        ("claimed ε", "right"),
        ("measured ε ≥", "right"),
        ("could show", "right"),
    ):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("verdict")
    for test in found["tests"]:
        figures = ["", "", ""]
        if "claimed" in test:
            figures = [
                _figure(test["claimed"]["epsilon"]),
                _figure(test["measured"]["epsilon"]),
                _figure(test["reach"]),
            ]
        table.add_row(test["what"], *figures, "BROKEN" if test["broken"] else "consistent")
    console.print(table)
    for text in found["left_out"]:
        console.print(f"left out: {text}", highlight=False)
    console.print(f"{found['scope']}.", highlight=False)
    console.print(
        f"verdict: {found['verdict']} (false alarms: {found['rate']:g})",
        highlight=False,
        style="bold",
    )


def _figure(value: float | None) -> str:
    return "∞" if value is None else f"{value:.2f}"
