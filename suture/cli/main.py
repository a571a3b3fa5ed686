"""The command line: arguments in, one library call, exit code out. Heavy imports wait until a
command needs them.

With ``--json`` a command prints exactly one JSON object on standard output; progress and messages
go to standard error. Exit codes: 0 done (also when a budget stopped training early), 1-6 an error
of `suture.errors`, 7 done, but some site missed rounds, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suture.cli import attack as _attack
from suture.cli import audit as _audit
from suture.cli import charter as _charter
from suture.cli import deid as _deid
from suture.cli import erase as _erase
from suture.cli import explain as _explain
from suture.cli import hub as _hub
from suture.cli import interop as _interop
from suture.cli import join as _join
from suture.cli import ledger as _ledger
from suture.cli import plan as _plan
from suture.cli import release as _release
from suture.cli import segment as _segment
from suture.cli import site as _site
from suture.cli import tune as _tune
from suture.errors import RunError, StudyError, SutureError
from suture.privacy.software import VERSION

if TYPE_CHECKING:
    from suture.engine.conduct import Progress
    from suture.result import Result

SUBSET = 7
"""The exit code of a run that finished, but in which some site missed rounds."""

app = typer.Typer(
    name="suture",
    help="Hospitals train one model together while every record stays behind its own wall.",
    epilog="Example: suture init demo && suture run demo/study.toml",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(_plan.app)
app.add_typer(_charter.app)
app.add_typer(_ledger.app)
app.add_typer(_attack.app)
app.add_typer(_release.app)
app.add_typer(_deid.app)
app.add_typer(_hub.app)
app.add_typer(_site.app)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads to use; the numbers do not depend on it. Default: all cores."),
]


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


@app.command(epilog="Example: suture run study.toml --out runs/cardio --json")
def run(
    study: Annotated[
        Path | None, typer.Argument(help="The study file.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the interrupted run in this folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder. Default: runs/<study>-<time>.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare, separated by commas; the first leads.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, instead of evaluation.seeds.")
    ] = None,
    threads: Threads = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="embedded (all in one process, the default) or flower (a hub and one process per site, on this machine)."
        ),
    ] = None,
    hub: Annotated[
        Path | None,
        typer.Option(
            help="operator.json of the hub that the sites are connected to; see docs/federation.md."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a study, or go on with an interrupted one; writes result.json, model.npz and
    report.html."""
    from suture.engine import conduct
    from suture.network import engine_of
    from suture.study import Study

    command = "suture " + " ".join(sys.argv[1:])
    if (study is None) == (resume is None):
        raise StudyError("give a study file, or --resume RUN: suture run study.toml")
    if resume is not None:
        if out is not None or methods is not None or seeds is not None:
            raise StudyError(
                "--resume goes on with the study as it was; --out, --methods and --seeds do not "
                "apply"
            )
        with _progress(as_json) as progress, _interruptible(resume):
            result = conduct.resume(
                resume,
                progress=progress,
                command=command,
                engine=engine_of(engine, hub, threads, resume),
            )
    else:
        path = Path(str(study))
        asked = Study.from_toml(path)
        if methods is not None:
            names = [name.strip() for name in methods.split(",") if name.strip()]
            asked = asked.replace(method={"name": names[0]}, evaluation={"compare": names[1:]})
        if seeds is not None:
            asked = asked.replace(evaluation={"seeds": seeds})
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        folder = out or Path("runs") / f"{asked.name}-{stamp}"
        with _progress(as_json) as progress, _interruptible(folder):
            result = conduct.run(
                asked,
                out=folder,
                base=path.resolve().parent,
                progress=progress,
                command=command,
                file=path.resolve(),
                engine=engine_of(engine, hub, threads),
            )
    _show(result, as_json)
    missed = {
        site for found in result.data["methods"].values() for site in found.get("dropouts", {})
    }
    if missed:
        _say(
            f"suture: {', '.join(sorted(missed))} missed rounds; the result is of the others there "
            "(see dropouts in it)"
        )
        raise typer.Exit(SUBSET)


@app.command(epilog="Example: suture report runs/cardio --figures figures")
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    figures: Annotated[
        Path | None, typer.Option(help="Also save every figure here, as PNG and SVG.")
    ] = None,
    for_release: Annotated[
        Path | None,
        typer.Option(
            help="Instead, write a copy of the run here without exact figures about real patients."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Rebuild report.html from a finished run, or write a copy of the run that may be passed on."""
    from suture.report import page
    from suture.report.figures import save
    from suture.result import Result

    result = Result.load(folder)
    if for_release is not None:
        if for_release.exists() and any(for_release.iterdir()):
            raise RunError(f"{for_release} is not empty; give --for-release a folder of its own")
        result, folder = result.for_release(), for_release
        result.save(folder)
    page.write(result.data, folder / "report.html")
    written = [str(folder / "report.html")]
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        for name, chart in result.figures().items():
            for kind in ("png", "svg"):
                save(chart, figures / f"{name}.{kind}")
                written.append(str(figures / f"{name}.{kind}"))
    if as_json:
        _print_json({"written": written})
    else:
        for name in written:
            typer.echo(name)


@app.command(epilog="Example: suture card runs/icu")
def card(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished veil run.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: the run folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The model card: every concept with weight, quorum, stability and warnings, as a page and a
    picture."""
    from suture.explain.model_card import model_card

    found = model_card(folder, out=out)
    if as_json:
        _print_json(found)
    else:
        typer.echo(f"{found['concepts']} concepts, {found['trainings']} trainings")
        typer.echo(found["page"])
        typer.echo(found["picture"])


@app.command(epilog="Example: suture reproduce fedcvr --quick --out reproduced/fedcvr")
def reproduce(
    paper: Annotated[
        str, typer.Argument(help="Which paper: fedcvr, chapter, ifedavg, radiology or veil.")
    ],
    quick: Annotated[
        bool, typer.Option(help="Fewer patients, rounds and seeds: a look, not a result.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and figures. Default: reproduced/<paper>."),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a paper's experiments: its printed figures beside ours, its claimed epsilon beside the
    proven one."""
    from suture.papers import reproduce as run_paper

    target = out or Path("reproduced") / (f"{paper}-quick" if quick else paper)
    with _progress(as_json) as progress, _interruptible(target, resumable=False):
        found = run_paper(paper, out=target, quick=quick, threads=threads, progress=progress)
    if as_json:
        _print_json(found)
    else:
        from suture.report.console import print_reproduction

        print_reproduction(found)


@app.command(epilog="Example: suture bench --json")
def bench(
    quick: Annotated[bool, typer.Option(help="Shorter measurements; noisier ratios.")] = False,
    as_json: Json = False,
) -> None:
    """Measure speed side by side against Opacus, plain PyTorch and Flower + Opacus, where they are
    installed."""
    from suture.bench import measure

    found = measure(quick=quick, say=_say)
    if as_json:
        _print_json(found)
    else:
        from suture.report.console import print_bench

        print_bench(found)


@app.command(epilog="Example: suture init demo --files")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write into.")] = Path(),
    files: Annotated[
        bool,
        typer.Option(help="Also write the generated hospitals as CSV files, one per hospital."),
    ] = False,
    patients: Annotated[
        int, typer.Option(help="With --files: number of generated patients in all.")
    ] = 3000,
    images: Annotated[
        int,
        typer.Option(
            help="Instead, four generated hospitals with this many radiographs each, as DICOM and PNG files."
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Write an example study file (and, with --files or --images, example hospitals) to start
    from."""
    from suture.cohorts.starter import write_imaging_starter, write_starter

    if files and images:
        raise StudyError("--files writes tables and --images writes radiographs; give one of them")
    made = (
        write_imaging_starter(folder, images)
        if images
        else write_starter(folder, files=files, patients=patients)
    )
    written = [str(path) for path in made]
    if as_json:
        _print_json({"written": written})
    else:
        for name in written:
            typer.echo(name)
        typer.echo(f"next: suture run {written[0]}")


app.command(epilog=_audit.EXAMPLE)(_audit.audit)
app.command(epilog=_erase.EXAMPLE)(_erase.erase)
app.command(epilog=_explain.EXAMPLE)(_explain.explain)
app.command(epilog=_segment.EXAMPLE)(_segment.segment)
app.command(epilog=_interop.EXAMPLE)(_interop.interop)
app.command(epilog=_join.EXAMPLE)(_join.join)
app.command(epilog=_tune.EXAMPLE)(_tune.tune)


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        keys = (
            "release",
            "name",
            "method",
            "metrics",
            "privacy",
            "communication",
            "comparison",
            "warnings",
        )
        head = {key: result.data.get(key) for key in keys}
        lead = result.data["methods"][result.data["method"]]
        _print_json(
            {
                "out": str(result.folder),
                "result": str(Path(str(result.folder)) / "result.json"),
                "report": str(Path(str(result.folder)) / "report.html"),
                **{key: lead[key] for key in ("rounds_planned", "rounds_done", "stopped")},
                **head,
            }
        )
        return
    from suture.report.console import print_result

    print_result(result.data)
    typer.echo(f"result: {_near(result.folder)}/result.json")
    typer.echo(f"report: {_near(result.folder)}/report.html")


def _near(path: Path | None) -> str:
    """A path as short as it can be written from here."""
    text = os.path.relpath(str(path))
    return str(path) if text.startswith("..") else text


def _print_json(found: Any) -> None:
    typer.echo(json.dumps(found, allow_nan=False))


def _say(text: str) -> None:
    typer.echo(text, err=True)


@contextlib.contextmanager
def _interruptible(folder: Path, resumable: bool = True) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        hint = (
            f"go on with: suture run --resume {folder}"
            if resumable
            else "start it again; finished parts are kept"
        )
        _say(f"\ninterrupted; {hint}")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def _progress(as_json: bool) -> Iterator[Progress]:
    """A progress bar on standard error; plain lines, few of them, where that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_progress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(step: Any) -> None:
            auc = "" if step.auc is None else f"  AUC {step.auc:.3f}"
            text = f"{step.method}, run {step.part} of {step.parts}{auc}"
            done = (step.part - 1) * step.rounds + step.round
            bar.update(task, description=text, completed=done, total=step.parts * step.rounds)

        yield show


def _plain_progress() -> Callable[[Any], None]:
    def show(step: Any) -> None:
        if step.round == step.rounds:
            auc = "" if step.auc is None else f", AUC {step.auc:.3f}"
            # A step of one round is a whole training of a reproduction, whose text says all there
            # is to say.
            rounds = f", seed {step.seed}: {step.round} rounds" if step.rounds > 1 else ""
            _say(f"[{step.part}/{step.parts}] {step.method}{rounds}{auc}")

    return show


def main() -> None:
    """Entry point: a user's mistake ends with a message and an exit code, never with a
    traceback."""
    as_json = "--json" in sys.argv
    try:
        app()
    except SutureError as error:
        if as_json:
            _print_json({"error": {"kind": type(error).__name__, "message": str(error)}})
        _say(f"suture: {error}")
        raise SystemExit(error.exit_code) from None
    except MemoryError:
        _say("suture: out of memory; use fewer threads or smaller tables")
        raise SystemExit(RunError.exit_code) from None


if __name__ == "__main__":
    main()
