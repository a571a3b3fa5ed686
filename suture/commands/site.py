"""``suture site``: a hospital's side of a federation. Rows, ledger, charter and keys stay in the site's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.commands import Json, group, print_json, say

app = group(
    "site", "A hospital's site: it asks the hub for work and decides what it answers.", "suture site start boston"
)
Home = Annotated[Path, typer.Argument(help="The site's home: settings, keys, ledger, charter.")]


@app.command(epilog="Example: suture site init boston --invite boston.invite --data rows.csv")
def init(
    home: Home,
    invite: Annotated[Path, typer.Option(help="The file from the hub's operator (suture hub invite).")],
    data: Annotated[str, typer.Option(help="The table: a CSV, Parquet or DuckDB file. More in site.toml.")],
    region: Annotated[str, typer.Option(help="Where the site is, as charters write it.")] = "",
    without_charter: Annotated[bool, typer.Option(help="Take part without a signed charter: for trials only.")] = False,
    as_json: Json = False,
) -> None:
    """Make a site's home: a key of its own and site.toml, to be read and adjusted."""
    from suture.engines.enrolment import make_site

    found = make_site(home, invite, data, region=region, charter_needed=not without_charter)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['settings']} (read it), {found['key']} (keep it secret)")
        typer.echo(f"next: suture site enrol {home}")


@app.command(epilog="Example: suture site enrol boston")
def enrol(
    home: Home,
    new_key: Annotated[bool, typer.Option(help="Make a new key first; the old one is kept beside it.")] = False,
    as_json: Json = False,
) -> None:
    """Write the enrolment request for the hub's operator, and say the key's fingerprint to compare by telephone."""
    from suture.engines.enrolment import enrolment_request

    found = enrolment_request(home, new_key=new_key)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['request']}: send it to the hub's operator")
        typer.echo(f"key fingerprint {found['fingerprint']}: read it out when the operator calls")
        typer.echo(
            f'identity for sums under masks, for the other sites\' [peers]: {found["site"]} = "{found["identity"]}"'
        )


@app.command(epilog="Example: suture site start boston")
def start(home: Home, as_json: Json = False) -> None:
    """Run the site until it is stopped. Every connection goes out to the hub; none comes in."""
    import logging
    import signal

    from suture.engines import quiet

    quiet.need_flower()
    from suture.engines.desk import Desk
    from suture.engines.node import SiteNode
    from suture.engines.settings import read_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    quiet.silence()
    settings = read_settings(home)
    node = SiteNode(settings, home, Desk(settings, home))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: node.end())
    if as_json:
        print_json({"site": settings.name, "hub": settings.hub.address})
    say(f"site {settings.name!r} of hub {settings.hub.address}; stop with Ctrl-C")
    node.serve()


@app.command(epilog="Example: suture site status boston --json")
def status(home: Home, as_json: Json = False) -> None:
    """Connected or not, last round, last error, and what is left of every budget; from the site's own files."""
    from suture.engines.enrolment import site_status

    found = site_status(home)
    if as_json:
        print_json(found)
        return
    typer.echo(f"site {found['site']}: {found['connection']}, {found['answered']} answered, {found['refused']} refused")
    if found.get("op"):
        typer.echo(f"  last: {found['op']} {found.get('method', '')} round {found.get('round', '-')} at {found['at']}")
    if found["last_error"]:
        typer.echo(f"  last error: {found['last_error']}")
    for budget in found["budgets"]:
        typer.echo(f"  {budget['account']}: epsilon {budget['spent']:.4g} of {budget['epsilon']} spent")
