"""``suture report``: the page of a finished run, again, or a copy of the run to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option
from suture.errors import RunError

app = group()


@command(app, "suture report runs/cardio --figures figures")
def report(
    folder: Annotated[Path, argument("The run folder.", "RUN")],
    figures: Annotated[Path | None, option("Also save every figure here, as PNG and SVG.")] = None,
    for_release: Annotated[
        Path | None,
        option("Instead, write a copy of the run here without exact figures about real patients."),
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
    answer({"written": written}, as_json, *written)
