"""``suture audit``: the two-world test on what a site really sends."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from suture.cli.options import Json, StudyFile, Threads, answer, command, group, option, say
from suture.errors import PrivacyError

app = group()


@command(app, "suture audit study.toml --trials 1000 --rate 0.001 --json")
def audit(
    study: StudyFile,
    site: Annotated[str | None, option("Which site. Default: the smallest.")] = None,
    trials: Annotated[int, option("Runs per world and test.", least=40)] = 1000,
    rate: Annotated[float, option("Probability of a false alarm, all tests together.")] = 0.001,
    messages: Annotated[
        int, option("Messages drawn in search of repeated noise; 0: none.", least=0)
    ] = 250_000,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare measured with claimed epsilon, at the site, on its real path; nothing leaves. Exit
    code 4 when broken."""
    from suture.attacks.audit_site import audit_study

    found = audit_study(
        study, site=site, trials=trials, rate=rate, messages=messages, threads=threads, say=say
    )
    answer(found, as_json, _show)
    if found["broken"]:
        raise typer.Exit(PrivacyError.exit_code)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    size = f"{found['patients']:,} patients"
    title = f"{found['study']}, {found['method']} at {found['site']} ({size})"
    table = Table("test", title=title, title_justify="left")
    for name in ("claimed ε", "measured ε ≥", "could show"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for test in found["tests"]:
        figures = ["", "", ""]
        if "claimed" in test:
            values = (test["claimed"]["epsilon"], test["measured"]["epsilon"], test["reach"])
            figures = ["∞" if value is None else f"{value:.2f}" for value in values]
        table.add_row(test["what"], *figures, "BROKEN" if test["broken"] else "consistent")
    console.print(table)
    for text in found["left_out"]:
        console.print(f"left out: {text}", highlight=False)
    console.print(f"{found['scope']}.", highlight=False)
    verdict = f"verdict: {found['verdict']} (false alarms: {found['rate']:g})"
    console.print(verdict, highlight=False, style="bold")
