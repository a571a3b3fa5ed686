"""``suture audit``: the two-world test on what a site really sends."""

from __future__ import annotations

from typing import Annotated

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
    from suture.report.console import print_audit

    found = audit_study(
        study, site=site, trials=trials, rate=rate, messages=messages, threads=threads, say=say
    )
    answer(found, as_json, print_audit)
    if found["broken"]:
        raise typer.Exit(PrivacyError.exit_code)
