"""What commands share: how they register, options that recur, one JSON object or words for people.

A command's file makes its ``app`` with `group`, registers functions with `command`, and is listed in
`suture.cli.main`. Heavy imports wait inside the functions until a command needs them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
import typer.core

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.engine.conduct import Progress
    from suture.engine.round import Engine
    from suture.site.sources import SourceSpec

# Help is plain text here (rich_markup_mode=None), but Typer escapes its brackets for Rich all the
# same: "\\[default: 5]".
typer.core.HAS_RICH = False

ENGINES = ("embedded", "flower")
Function = TypeVar("Function", bound=Callable[..., None])


def option(help: str, *names: str, least: int | None = None) -> Any:
    """An option: ``--its-name`` of the parameter unless other ``names`` are given."""
    return typer.Option(*names, help=help, min=least)


def argument(help: str, shown: str | None = None, *, show_default: bool = True) -> Any:
    """A positional argument; ``shown`` is its name in the help."""
    return typer.Argument(metavar=shown, help=help, show_default=show_default)


Json = Annotated[bool, option("Print one JSON object on standard output.", "--json")]
StudyFile = Annotated[Path, argument("The study file.")]
Run = Annotated[Path, argument("The folder of a finished run.", "RUN")]
Threads = Annotated[
    int | None, option("Threads to use; the numbers do not depend on it. Default: all cores.")
]
Quick = Annotated[bool, option("Fewer patients, rounds or runs: a look, not a result.")]
Delta = Annotated[float, option("The delta of (epsilon, delta).")]


@dataclass(frozen=True)
class Engines:
    """Where the sites are."""

    engine: Annotated[
        str | None,
        option(
            "embedded (all in one process, the default) or flower (a hub and one process per "
            "site, on this machine)."
        ),
    ] = None
    hub: Annotated[
        Path | None,
        option("operator.json of the hub that the sites are connected to; see docs/federation.md."),
    ] = None
    threads: Threads = None
    unchecked: Annotated[
        bool,
        option("Run also where nobody has checked a site's table and signed; the result says so."),
    ] = False

    def open(self, run: Path | None = None) -> Engine:
        """The engine; a ``run`` that is resumed goes on where it began."""
        name, hub = self.engine, self.hub
        if name is None and hub is None and run is not None:
            name, hub = _recorded(run)
        if name not in (None, *ENGINES):
            raise StudyError(f"engine {name!r} is not known; expected one of: {', '.join(ENGINES)}")
        if hub is None and name in (None, "embedded"):
            from suture.engine.embedded import Embedded

            return Embedded(self.threads, unchecked=self.unchecked)
        if hub is not None and name == "embedded":
            raise StudyError("--hub goes with --engine flower: the embedded engine has no network")
        from suture.network.coordinator import Remote

        if hub is None:
            from suture.network.local import LocalFlower

            return Remote(LocalFlower({"ready_needed": not self.unchecked}))
        if self.unchecked:
            raise StudyError(
                "--unchecked is for sites on this machine; behind a hub every site decides for "
                "itself (ready_needed in its site.toml)"
            )
        from suture.network.flower import Flower, Hub
        from suture.network.hub import read_operator

        recorded = {"engine": "flower", "hub": str(hub.resolve())}
        return Remote(Flower(Hub(read_operator(hub))), recorded)


def _recorded(run: Path) -> tuple[str | None, Path | None]:
    """Where an earlier part of a run took place."""
    try:
        found = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, None  # whoever opens the run's folder says what is wrong with it
    return found.get("engine"), Path(found["hub"]) if found.get("hub") else None


@dataclass(frozen=True)
class Reading:
    """How a table's file is written: the details of ``data = { path = ..., ... }`` as options."""

    separator: Annotated[str | None, option("What separates columns of a .csv file.")] = None
    encoding: Annotated[str, option("utf-8, latin-1 or utf-16.")] = "utf-8"
    decimal: Annotated[str, option("The decimal mark: a point or a comma.")] = "."
    missing: Annotated[list[str] | None, option("A text that means missing; repeat.")] = None
    table: Annotated[str | None, option("The table of a .duckdb file.")] = None

    def of(self, file: Path) -> SourceSpec:
        """The source that these options and a file make."""
        from pydantic import ValidationError

        from suture.schema.table import explain
        from suture.site.sources import SourceSpec

        given = {"path": str(file), **asdict(self), "missing": tuple(self.missing or ())}
        try:
            return SourceSpec.model_validate(given)
        except ValidationError as error:
            raise StudyError(explain(error, "options")) from None


def group(name: str = "", help: str = "", example: str = "", **options: Any) -> typer.Typer:
    """The commands of one file: ``suture NAME ...``, or without a name commands of their own.

    >>> group("deid", "Find identifiers.", "suture deid scan rows.csv").info.name
    'deid'
    """
    if not name:
        return typer.Typer()
    options = {"no_args_is_help": True, **options}
    return typer.Typer(
        name=name, help=help, epilog=f"Example: {example}", rich_markup_mode=None, **options
    )


def command(
    app: typer.Typer, example: str, name: str | None = None
) -> Callable[[Function], Function]:
    """Register a function. A parameter that is a dataclass stands for the options that are its
    fields: options that belong together, or that several commands have, are declared once."""

    def register(function: Function) -> Function:
        app.command(name, epilog=f"Example: {example}")(_opened(function))
        return function

    return register


def _opened(function: Callable[..., None]) -> Callable[..., None]:
    hints = get_type_hints(function, include_extras=True)
    groups = {n: kind for n, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    shown: list[inspect.Parameter] = []
    for name, given in inspect.signature(function).parameters.items():
        inner = name in groups
        kinds = get_type_hints(groups[name], include_extras=True) if inner else hints
        for one in inspect.signature(groups[name]).parameters.values() if inner else (given,):
            shown.append(one.replace(kind=one.KEYWORD_ONLY, annotation=kinds[one.name]))

    @functools.wraps(function)
    def call(**given: Any) -> None:
        for name, kind in groups.items():
            inner = {field.name: given.pop(field.name) for field in fields(kind)}
            given[name] = kind(**inner)
        function(**given)

    call.__dict__["__signature__"] = inspect.Signature(shown)
    call.__annotations__ = {one.name: one.annotation for one in shown}
    return call


def answer(found: Any, as_json: bool, *shown: str | Callable[[Any], object]) -> None:
    """One JSON object on standard output; for people, lines and what functions print of it."""
    if as_json:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    for one in shown:
        if isinstance(one, str):
            typer.echo(one)
        else:
            one(found)


def say(text: str) -> None:
    """A line for people, on standard error."""
    typer.echo(text, err=True)


def listed(text: str | None) -> list[str]:
    """The names of an option that takes several, separated by commas.

    >>> listed("age, sex,")
    ['age', 'sex']
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@contextlib.contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Ctrl-C ends with a hint and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ninterrupted; {hint}")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def progress_bar() -> Iterator[Progress]:
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
        yield _plain
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


def _plain(step: Any) -> None:
    if step.round == step.rounds:
        auc = "" if step.auc is None else f", AUC {step.auc:.3f}"
        # A step of one round is a whole training of a reproduction, whose text says all there is
        # to say.
        rounds = f", seed {step.seed}: {step.round} rounds" if step.rounds > 1 else ""
        say(f"[{step.part}/{step.parts}] {step.method}{rounds}{auc}")
