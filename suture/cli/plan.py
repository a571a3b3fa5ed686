"""``suture plan``: the missing figure of a study, the budget over the rounds, the smallest safe
epsilon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Delta, Json, answer, command, group, option
from suture.errors import StudyError

app = group(
    "plan",
    "Give all but one of these values and get the missing one: noise for a budget, budget for a "
    "noise, rounds that fit, and so on.",
    "suture plan --patients 1270 --batch 32 --epochs 500 --noise 1.0 --delta 1e-5 --json",
    invoke_without_command=True,
    no_args_is_help=False,
)
Batch = Annotated[int | None, option("Expected number of patients in a batch.")]


@app.callback()
def plan(
    context: typer.Context,
    patients: Annotated[
        list[int] | None, option("Patients of a hospital; repeat for several.")
    ] = None,
    batch: Batch = None,
    epochs: Annotated[int | None, option("Local epochs in all.")] = None,
    rounds: Annotated[int | None, option("Rounds, of --local-epochs each.")] = None,
    local_epochs: Annotated[
        int | None, option("Local epochs per round, with --rounds. Default: 1.")
    ] = None,
    noise: Annotated[
        float | None, option("Noise multiplier (standard deviation over clip).")
    ] = None,
    epsilon: Annotated[float | None, option("Privacy budget.")] = None,
    delta: Annotated[float | None, option("The delta of (epsilon, delta).")] = None,
    as_json: Json = False,
) -> None:
    """The value that was left out."""
    given = (patients, batch, epochs, rounds, local_epochs, noise, epsilon, delta)
    if context.invoked_subcommand is not None:
        if as_json or any(value for value in given):
            raise StudyError(f"options of `plan {context.invoked_subcommand}` go after its name")
        return
    from suture.privacy.accounting.questions import answer as solve
    from suture.report.console import print_plan

    found = solve(
        patients=patients or None,
        batch=batch,
        epochs=epochs,
        rounds=rounds,
        local_epochs=1 if local_epochs is None and rounds is not None else local_epochs,
        noise=noise,
        epsilon=epsilon,
        delta=delta,
    )
    answer(found, as_json, print_plan)


@command(app, "suture plan table --round-epsilon 1 --rounds 100 --budget 8 --plot budget.png")
def table(
    rounds: Annotated[int, option("The last round shown.")],
    noise: Annotated[float | None, option("Noise multiplier of a step.")] = None,
    round_epsilon: Annotated[
        float | None, option("Or the epsilon a round is labelled with.")
    ] = None,
    formula: Annotated[str, option("What the label means: classical or analytic.")] = "classical",
    patients: Annotated[int | None, option("Patients; with --batch, rounds sample them.")] = None,
    batch: Batch = None,
    local_epochs: Annotated[int, option("Local epochs per round.")] = 1,
    delta: Delta = 1e-5,
    budget: Annotated[float | None, option("A budget: how many rounds fit it, each way.")] = None,
    at: Annotated[list[int] | None, option("Rounds to show; repeat. Default: about forty.")] = None,
    plot: Annotated[Path | None, option("Draw it: a .png, .svg or .html file.")] = None,
    as_json: Json = False,
) -> None:
    """The budget over the rounds by basic composition, the square-root rule, RDP and PLD, as a
    table and a plot."""
    from suture.privacy.accounting.questions import budget_over_rounds
    from suture.report.console import print_history

    found = budget_over_rounds(
        rounds=rounds,
        delta=delta,
        noise=noise,
        round_epsilon=round_epsilon,
        formula=formula,
        patients=patients,
        batch=batch,
        local_epochs=local_epochs,
        budget=budget,
        at=at or (),
    )
    if plot is not None:
        from suture.report.plans import draw_history

        found["plot"] = str(draw_history(found, plot))
    answer(found, as_json, print_history)


@command(
    app,
    "suture plan safe-epsilon --rate 0.012 --threshold 0.01 --patients 4000 --json",
    "safe-epsilon",
)
def safe_epsilon(
    rate: Annotated[float, option("The true rate of the adverse event, such as 0.012.")],
    threshold: Annotated[float, option("The drug is flagged above this rate, such as 0.01.")],
    patients: Annotated[int, option("Patients at the site.")],
    reliability: Annotated[float, option("How often the flag must be right.")] = 0.95,
    delta: Delta = 1e-5,
    as_json: Json = False,
) -> None:
    """The strongest privacy at which a safety flag on a noisy rate is still right often enough."""
    from suture.privacy.accounting.questions import safe_epsilon as find
    from suture.report.console import print_safe

    found = find(
        rate=rate, threshold=threshold, patients=patients, reliability=reliability, delta=delta
    )
    answer(found, as_json, print_safe)


@command(app, "suture plan method --patients 1300 --patients 900 --patients 1100 --epsilon 1")
def method(
    patients: Annotated[list[int], option("Training patients of a hospital; repeat for several.")],
    epsilon: Annotated[float | None, option("Privacy budget; none: no promise.")] = None,
    delta: Delta = 1e-5,
    classes: Annotated[int, option("How many outcomes are told apart.")] = 2,
    images: Annotated[bool, option("The rows are images.")] = False,
    masked: Annotated[bool, option("Sums are masked, as [protection] sum says.")] = False,
    threshold: Annotated[float, option("Masked: the share of sites that must stay.")] = 0.9,
    as_json: Json = False,
) -> None:
    """The method that suits such a federation best, with its rounds and settings, by public facts
    alone: what `method.name = "recommended"` chooses."""
    from suture.methods.declared import Public
    from suture.methods.registry import MethodSpec, ranked, recommend
    from suture.protection.terms import ProtectionSpec
    from suture.schema.outcome import Classes

    protection = ProtectionSpec(sum="masked" if masked else "trusted", threshold=threshold)
    sizes = {str(number): count for number, count in enumerate(patients, 1)}
    public = Public(
        None, len(sizes), sum(patients), sizes, outcome=Classes(written=classes), epsilon=epsilon, masked=masked,
        images=images, delta=delta, honest=protection.honest_of(len(sizes)),
    )  # fmt: skip
    chosen = recommend(MethodSpec(), public).model_dump(exclude_unset=True)
    _, fit = ranked(public)[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in chosen.items()]
    answer({"method": chosen, "why": fit.why}, as_json, "[method]", *lines, f"# {fit.why}")
