"""``suture check``: a site's table and a study, before anything is charged; and a person's "ready"."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suture.cli.options import Json, StudyFile, answer, command, group, option
from suture.errors import DataError, StudyError

if TYPE_CHECKING:
    from suture.site.gate import Place
    from suture.study import Study

app = group()


@command(app, 'suture check study.toml --sign "A. Kowal"')
def check(
    study: StudyFile,
    home: Annotated[
        Path | None, option("The home of this hospital's site, where the study names no table.")
    ] = None,
    site: Annotated[str | None, option("Only this site of the study.")] = None,
    sign: Annotated[
        str | None, option("Your name: sign that the table is ready for exactly this study.")
    ] = None,
    even_so: Annotated[str, option("Why to sign although a finding says stop.")] = "",
    as_json: Json = False,
) -> None:
    """Look at each site's table, free and local: what is wrong, what the study costs, whether its
    method can work. What is found stays at the site; `suture run` on real patients needs a person's
    signature, and tells who signed and when."""
    from suture.engine.check import check_site
    from suture.privacy.files import write_whole
    from suture.report.console import print_check
    from suture.site.ready import sign_ready
    from suture.study import Study

    asked, base = Study.from_toml(study), study.resolve().parent
    if asked.simulation and sign is not None:
        raise StudyError("simulation = true needs nobody's ready; leave --sign out")
    places = _places(asked, base, home, site)
    found = [check_site(asked, place, base) for place in places]
    for place, one in zip(places, found, strict=True):
        one["file"] = str(Path(str(place.home)) / "check" / f"{asked.digest[:16]}.json")
        Path(one["file"]).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(Path(one["file"]), json.dumps(one, indent=1).encode(), mode=0o600)
    signed: dict[str, str] = {}
    whole = {"study": asked.name, "digest": asked.digest, "sites": found, "signed": signed}
    if not as_json:
        print_check(whole)
    for place, one in zip(places, found, strict=True) if sign else ():
        path = sign_ready(
            place, asked.digest, str(sign), datetime.now(UTC), looks=one["look"],
            stops=one["stop"], even_so=even_so, table=asked.table_digest,
        )  # fmt: skip
        signed[place.name] = str(path)
    lines = [f"{name}: signed as ready by {sign} ({path})" for name, path in signed.items()]
    stops = any(one["stop"] for one in found)
    if not (stops or signed or asked.simulation):
        lines = [f"next: suture check {study} --sign NAME"]
    answer(whole, as_json, *lines)
    if stops and not signed:
        raise typer.Exit(DataError.exit_code)


def _places(asked: Study, base: Path, home: Path | None, site: str | None) -> list[Place]:
    """The tables to look at: one site's own, or those that the study file names."""
    from suture.network.settings import read_settings
    from suture.site.gate import place_of

    own = read_settings(home) if home is not None else None
    wanted = [one for one in asked.sites if (own.name if own else site) in (None, one.name)]
    if own is not None and home is not None:
        places = [place_of(own.site(one), home) for one in wanted]
    else:
        places = [place_of(one, base) for one in wanted if one.data is not None]
    if not places:
        names = ", ".join(one.name for one in asked.sites) or "none: its patients are built in"
        raise StudyError(
            f"study {asked.name!r} has no table to check here; its sites are: {names}. At a "
            "hospital of a federation name its home: suture check study.toml --home HOME"
        )
    return places
