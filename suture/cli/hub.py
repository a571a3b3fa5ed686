"""``suture hub``: the place in the middle of a federation. It carries sealed bytes between sites
and coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suture.cli.options import Json, group, print_json, say
from suture.errors import StudyError

app = group(
    "hub",
    "The hub of a federation: where sites and coordinators meet.",
    "suture hub init hub --host hub.example.org",
)
Folder = Annotated[Path, typer.Argument(help="The hub's folder.")]


@app.command(epilog="Example: suture hub init hub --host hub.example.org --port 8443")
def init(
    folder: Folder = Path("hub"),
    host: Annotated[
        list[str], typer.Option(help="Name or address by which sites reach it; may be given again.")
    ] = [],  # noqa: B006
    port: Annotated[int, typer.Option(help="The one port that must be reachable.")] = 8443,
    as_json: Json = False,
) -> None:
    """Make a hub: its certificate authority, its certificate, and operator.json for whoever runs
    studies."""
    from suture.network.hub import make_hub

    if not host:
        raise StudyError(
            "give the name by which sites reach the hub: suture hub init hub --host hub.example.org"
        )
    found = make_hub(folder, host, port)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{folder}: hub for {found['hub']}")
        typer.echo(
            f"{found['operator']} lets its holder run studies and enrol sites: keep it secret"
        )
        typer.echo(f"next: suture hub start {folder}")


@app.command(epilog="Example: suture hub start hub")
def start(
    folder: Folder = Path("hub"),
    bind: Annotated[
        str | None, typer.Option(help="Address to listen on, instead of hub.toml's.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, instead of hub.toml's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the hub until it is stopped; sites and coordinators connect to it over TLS."""
    from suture.network.hub import read_hub, serve

    settings = read_hub(folder)
    address = f"{bind or settings['bind']}:{settings['port'] if port is None else port}"
    if as_json:
        print_json({"hub": str(folder), "address": address})
    say(f"hub {folder} on {address}; stop with Ctrl-C")
    serve(folder, bind=bind, port=port)


@app.command(epilog="Example: suture hub invite boston --hub hub > boston.invite")
def invite(
    name: Annotated[str, typer.Argument(help="The site's name, as studies call it.")],
    hub: Annotated[Path, typer.Option(help="The hub's folder or operator.json.")] = Path("hub"),
    as_json: Json = False,
) -> None:
    """Print what a hospital needs to make its site: the hub's address and authority. Nothing in it
    is secret."""
    from suture.network.enrolment import invitation

    print_json(invitation(hub, name))


@app.command(epilog="Example: suture hub admit boston.enrol --hub hub")
def admit(
    request: Annotated[
        Path, typer.Argument(help="The file that `suture site enrol` wrote at the hospital.")
    ],
    hub: Annotated[Path, typer.Option(help="The hub's folder or operator.json.")] = Path("hub"),
    fingerprint: Annotated[
        str | None, typer.Option(help="The key's fingerprint, as the hospital reads it out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Enrol a site by its public key. Compare the fingerprint with the hospital by telephone
    first."""
    from suture.network.enrolment import admit as enrol

    found = enrol(hub, request, fingerprint)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"site {found['site']!r} enrolled, key {found['fingerprint']}")


@app.command(epilog="Example: suture hub revoke boston --hub hub")
def revoke(
    name: Annotated[str, typer.Argument(help="The site.")],
    hub: Annotated[Path, typer.Option(help="The hub's folder or operator.json.")] = Path("hub"),
    as_json: Json = False,
) -> None:
    """Take a site's key off the list: from now on the hub answers it nothing. A new key is enrolled
    with admit."""
    from suture.network.enrolment import revoke as remove

    found = remove(hub, name)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"site {name!r}: {found['revoked']} keys revoked")


@app.command(epilog="Example: suture hub renew hub")
def renew(folder: Folder = Path("hub"), as_json: Json = False) -> None:
    """Make a new certificate for the hub, by the same authority; sites need no change. Restart the
    hub after."""
    from suture.network.hub import renew_server

    found = renew_server(folder)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found['certificate']} is valid until {found['until']}; restart the hub")


@app.command(epilog="Example: suture hub status --hub hub --json")
def status(
    hub: Annotated[Path, typer.Option(help="The hub's folder or operator.json.")] = Path("hub"),
    as_json: Json = False,
) -> None:
    """Who is enrolled and connected, and which runs there are."""
    from suture.network.enrolment import hub_status

    found = hub_status(hub)
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"hub {found['hub']}: {sum(s['connected'] for s in found['sites'])} of "
        f"{len(found['sites'])} sites connected"
    )
    for site in found["sites"]:
        typer.echo(
            f"  {site['site']}: {site['status']}, last up {site['last_up'] or 'never'}, key "
            f"{site['fingerprint']}"
        )
    for run in found["runs"][-5:]:
        typer.echo(f"  run {run['run']}: {run['status']}, since {run['since']}")
