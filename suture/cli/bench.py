"""``suture bench``: speed beside what a user would pick instead."""

from __future__ import annotations

from typing import Annotated

from suture.cli.options import Json, answer, command, group, option, say

app = group()


@command(app, "suture bench --json")
def bench(
    quick: Annotated[bool, option("Shorter measurements; noisier ratios.")] = False,
    as_json: Json = False,
) -> None:
    """Measure speed side by side against Opacus, plain PyTorch and Flower + Opacus, where they are
    installed."""
    from suture.bench import measure
    from suture.report.console import print_bench

    answer(measure(quick=quick, say=say), as_json, print_bench)
