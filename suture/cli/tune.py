"""``suture tune``: search a method's settings on patients whom the study never tests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from suture.cli.options import (
    Json,
    StudyFile,
    Threads,
    answer,
    command,
    group,
    interruptible,
    listed,
    option,
    say,
)

app = group()


@dataclass(frozen=True)
class Rule:
    """Which trial is taken."""

    frugal: Annotated[
        bool,
        option("Take the trial that sends least of those within one standard error of the best."),
    ] = False
    most_bytes: Annotated[
        float | None,
        option("Take, and steer towards, settings with which a hospital sends at most this."),
    ] = None
    most_ece: Annotated[
        float | None, option("Take only settings whose calibration error (ECE) is at most this.")
    ] = None


@command(app, "suture tune study.toml --trials 50 --method fedavg,veil --out tuned")
def tune(
    study: StudyFile,
    *,
    trials: Annotated[
        int | None,
        option(
            "Trials per method, earlier ones included. Default: 50; on own patients 3 candidates."
        ),
    ] = None,
    method: Annotated[
        str | None,
        option("Methods, separated by commas, as many trials each. Default: the study's."),
    ] = None,
    on: Annotated[
        str | None, option("Search on this generated federation instead of the study's sites.")
    ] = None,
    size: Annotated[
        float | None,
        option("Share of a generated federation's hospitals. Default: a quarter of a large one."),
    ] = None,
    seed: Annotated[
        int | None, option("Of the generated patients. Default: the study's plus 1000.")
    ] = None,
    out: Annotated[
        Path | None, option("Folder; a search in it goes on. Default: tuned/<study>.")
    ] = None,
    threads: Threads = None,
    rule: Rule,
    only: Annotated[
        list[str] | None,
        option("Search only these values of a setting, as rounds=4,5. Can be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search settings with Optuna; ends with a study file ready to run. For a site's own patients it
    writes a study whose run chooses among a few candidates within its promise."""
    from suture.errors import StudyError
    from suture.report.console import print_search
    from suture.study import Study
    from suture.tune.plan import Rule as Taken
    from suture.tune.plan import own_patients
    from suture.tune.search import prepare
    from suture.tune.search import tune as search

    asked = Study.from_toml(study)
    folder = out or Path("tuned") / asked.name
    pairs = (text.partition("=") for text in only or [])
    values = {key: text.split(",") for key, _, text in pairs}
    names = dict.fromkeys(listed(method or asked.method.name))
    if own_patients(asked, on):
        if out is not None:
            raise StudyError("--out: the new study is written beside this one, whose paths it uses")
        made = [
            prepare(asked, study.with_name(f"{study.stem}-{name}.toml"), name, trials or 3, values)
            for name in names
        ]
        answer({"methods": made}, as_json)
        for one in () if as_json else made:
            say(f"{one['method']}: {one['candidates']} candidates; nothing was read or charged")
            say(f"privacy: {one['privacy_cost']}")
            say(f"next: suture run {one['study']}")
        return
    with interruptible("the same command goes on with the search"):
        found = [
            search(
                asked,
                out=folder / name,
                trials=50 if trials is None else trials,
                method=name,
                on=on,
                size=size,
                seed=seed,
                threads=threads,
                only=values,
                say=say,
                rule=Taken(**asdict(rule)),
            )
            for name in names
        ]
    answer({"methods": found}, as_json, lambda _: print_search(found))
