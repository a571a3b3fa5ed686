"""``suture methods``: the methods, what each needs, and which suit a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group

app = group()


@command(app, "suture methods study.toml")
def methods(
    study: Annotated[
        Path | None,
        argument("A study file: rank the methods for it.", "STUDY", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods with their papers and settings; for a study, those that suit it first."""
    from suture.engine.federation import survey
    from suture.engine.plan import public_of
    from suture.methods.registry import described
    from suture.report.console import print_methods
    from suture.study import Study

    public = None
    if study is not None:
        asked = Study.from_toml(study)
        public = public_of(asked, survey(asked, study.resolve().parent, asked.seed))
    found = described(public)
    answer({"methods": found}, as_json, lambda _: print_methods(found))
