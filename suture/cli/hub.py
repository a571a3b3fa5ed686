"""``suture hub``: the place in the middle of a federation. It carries sealed bytes between sites
and coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from suture.cli.options import Json, answer, argument, command, group, option, say
from suture.errors import StudyError

app = group(
    "hub",
    "The hub of a federation: where sites and coordinators meet.",
    "suture hub init hub --host hub.example.org",
)
Folder = Annotated[Path, argument("The hub's folder.")]
Hub = Annotated[Path, option("The hub's folder or operator.json.")]


@command(app, "suture hub init hub --host hub.example.org --port 8443")
def init(
    folder: Folder = Path("hub"),
    host: Annotated[
        list[str], option("Name or address by which sites reach it; may be given again.")
    ] = [],  # noqa: B006
    port: Annotated[int, option("The one port that must be reachable.")] = 8443,
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
    answer(
        found,
        as_json,
        f"{folder}: hub for {found['hub']}",
        f"{found['operator']} lets its holder run studies and enrol sites: keep it secret",
        f"next: suture hub start {folder}",
    )


@command(app, "suture hub start hub")
def start(
    folder: Folder = Path("hub"),
    bind: Annotated[str | None, option("Address to listen on, instead of hub.toml's.")] = None,
    port: Annotated[int | None, option("Port to listen on, instead of hub.toml's.")] = None,
    as_json: Json = False,
) -> None:
    """Run the hub until it is stopped; sites and coordinators connect to it over TLS."""
    from suture.network.hub import read_hub, serve

    settings = read_hub(folder)
    address = f"{bind or settings['bind']}:{settings['port'] if port is None else port}"
    answer({"hub": str(folder), "address": address}, as_json)
    say(f"hub {folder} on {address}; stop with Ctrl-C")
    serve(folder, bind=bind, port=port)


@command(app, "suture hub invite boston --hub hub > boston.invite")
def invite(
    name: Annotated[str, argument("The site's name, as studies call it.")],
    hub: Hub = Path("hub"),
    as_json: Json = False,
) -> None:
    """Print what a hospital needs to make its site: the hub's address and authority. Nothing in it
    is secret."""
    from suture.network.enrolment import invitation

    answer(invitation(hub, name), as_json=True)


@command(app, "suture hub admit boston.enrol --hub hub")
def admit(
    request: Annotated[Path, argument("The file that `suture site enrol` wrote at the hospital.")],
    hub: Hub = Path("hub"),
    fingerprint: Annotated[
        str | None, option("The key's fingerprint, as the hospital reads it out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Enrol a site by its public key. Compare the fingerprint with the hospital by telephone
    first."""
    from suture.network.enrolment import admit as enrol

    found = enrol(hub, request, fingerprint)
    answer(found, as_json, f"site {found['site']!r} enrolled, key {found['fingerprint']}")


@command(app, "suture hub revoke boston --hub hub")
def revoke(
    name: Annotated[str, argument("The site.")], hub: Hub = Path("hub"), as_json: Json = False
) -> None:
    """Take a site's key off the list: from now on the hub answers it nothing. A new key is enrolled
    with admit."""
    from suture.network.enrolment import revoke as remove

    found = remove(hub, name)
    answer(found, as_json, f"site {name!r}: {found['revoked']} keys revoked")


@command(app, "suture hub renew hub")
def renew(folder: Folder = Path("hub"), as_json: Json = False) -> None:
    """Make a new certificate for the hub, by the same authority; sites need no change. Restart the
    hub after."""
    from suture.network.hub import renew_server

    found = renew_server(folder)
    shown = f"{found['certificate']} is valid until {found['until']}; restart the hub"
    answer(found, as_json, shown)


@command(app, "suture hub status --hub hub --json")
def status(hub: Hub = Path("hub"), as_json: Json = False) -> None:
    """Who is enrolled and connected, and which runs there are."""
    from suture.network.enrolment import hub_status

    found = hub_status(hub)
    connected = sum(site["connected"] for site in found["sites"])
    lines = [f"hub {found['hub']}: {connected} of {len(found['sites'])} sites connected"]
    for site in found["sites"]:
        last = site["last_up"] or "never"
        lines.append(
            f"  {site['site']}: {site['status']}, last up {last}, key {site['fingerprint']}"
        )
    for run in found["runs"][-5:]:
        lines.append(f"  run {run['run']}: {run['status']}, since {run['since']}")
    answer(found, as_json, *lines)
