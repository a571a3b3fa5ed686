"""``suture site``: a hospital's side of a federation. Rows, ledger, charter and keys stay in the
site's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from suture.cli.options import Json, answer, argument, command, group, option, say

app = group(
    "site",
    "A hospital's site: it asks the hub for work and decides what it answers.",
    "suture site start boston",
)
Home = Annotated[Path, argument("The site's home: settings, keys, ledger, charter.")]


@command(app, "suture site init boston --invite boston.invite --data rows.csv")
def init(
    home: Home,
    invite: Annotated[Path, option("The file from the hub's operator (suture hub invite).")],
    data: Annotated[str, option("The table: a CSV, Parquet or DuckDB file. More in site.toml.")],
    region: Annotated[str, option("Where the site is, as charters write it.")] = "",
    without_charter: Annotated[
        bool, option("Take part without a signed charter: for trials only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a site's home: a key of its own and site.toml, to be read and adjusted."""
    from suture.network.enrolment import make_site

    found = make_site(home, invite, data, region=region, charter_needed=not without_charter)
    files = f"{found['settings']} (read it), {found['key']} (keep it secret)"
    answer(found, as_json, files, f"next: suture site enrol {home}")


@command(app, "suture site enrol boston")
def enrol(
    home: Home,
    new_key: Annotated[
        bool, option("Make a new key first; the old one is kept beside it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the enrolment request for the hub's operator, and say the key's fingerprint to compare
    by telephone."""
    from suture.network.enrolment import enrolment_request

    found = enrolment_request(home, new_key=new_key)
    answer(
        found,
        as_json,
        f"{found['request']}: send it to the hub's operator",
        f"key fingerprint {found['fingerprint']}: read it out when the operator calls",
        f"identity for sums under masks, for the other sites' [peers]: {found['site']} = "
        f'"{found["identity"]}"',
    )


@command(app, "suture site start boston")
def start(home: Home, as_json: Json = False) -> None:
    """Run the site until it is stopped. Every connection goes out to the hub; none comes in."""
    import logging
    import signal

    from suture.network.flower import SiteNode, silence
    from suture.network.node import Handler
    from suture.network.settings import read_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    silence()
    settings = read_settings(home)
    node = SiteNode(settings, home, Handler(settings, home))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: node.end())
    answer({"site": settings.name, "hub": settings.hub.address}, as_json)
    say(f"site {settings.name!r} of hub {settings.hub.address}; stop with Ctrl-C")
    node.serve()


@command(app, "suture site accept boston study.toml")
def accept(
    home: Home,
    study: Annotated[Path, argument("The study file, as the researchers sent it.")],
    as_json: Json = False,
) -> None:
    """Show what a study promises here, and accept exactly it: any other setting makes it another
    study, and is refused.

    A site with a signed charter needs no such step: its charter names the study.
    """
    from suture.errors import RunError, StudyError
    from suture.network.settings import read_settings
    from suture.privacy.files import write_whole
    from suture.site.gate import STUDIES
    from suture.study import Study

    name, asked = read_settings(home).name, Study.from_toml(study)
    if asked.simulation:
        raise StudyError(
            "simulation = true has no network, so no site takes part in it; ask for the study "
            "without it"
        )
    if asked.table is None or name not in [site.name for site in asked.sites]:
        names = ", ".join(site.name for site in asked.sites) or "none: its patients are built in"
        raise StudyError(
            f"study {asked.name!r} does not name this site ({name!r}); it has: {names}"
        )
    size = asked.declared(name)
    if size is None:
        raise StudyError(
            f"study {asked.name!r} declares no size for {name!r}, and the table is not counted for "
            "it; ask for patients = ... (a round number, about as many as train here) in its "
            "[[site]]"
        )
    privacy = asked.privacy
    found = {
        "study": asked.name,
        "digest": asked.digest,
        "site": name,
        "sites": [site.name for site in asked.sites],
        "outcome": asked.asked,
        "patient": asked.table.patient,
        "features": list(asked.table.features),
        "patients": size,
        "edition": next(site.edition for site in asked.sites if site.name == name),
        "methods": list(asked.methods),
        "rounds": asked.method.rounds,
        "seeds": asked.evaluation.seeds,
        "folds": asked.evaluation.folds,
        "unit": privacy.unit if privacy else None,
        "epsilon": privacy.epsilon if privacy else None,
        "delta": privacy.delta if privacy else None,
        "evaluation_epsilon": asked.evaluation_epsilon,
        "protection": asked.protection.model_dump(mode="json"),
    }
    target = home / STUDIES / f"{asked.name}-{asked.digest[:12]}.toml"
    # What is promised is read before it is accepted, also where that fails.
    if not as_json:
        answer(found, False, *_promises(found))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, study.read_bytes())
    except OSError as error:
        raise RunError(f"the study cannot be kept at {target}: {error}") from None
    shown = f"accepted: {target} (delete it to withdraw)"
    answer({**found, "file": str(target)}, as_json, shown)


def _promises(found: dict[str, Any]) -> list[str]:
    """What the study promises at this site, a line each."""
    protection = found["protection"]
    bound = f", norm bound {protection['norm_bound']:g}" if protection["norm_bound"] else ""
    promise = "NONE: no differential privacy"
    if found["unit"] is not None:
        epsilon = (
            "as the stated noise costs" if found["epsilon"] is None else f"{found['epsilon']:g}"
        )
        promise = (
            f"epsilon {epsilon}, delta {found['delta']:g}, unit: {found['unit']}, for each method"
        )
        if found["evaluation_epsilon"]:
            promise += (
                f"; of it, epsilon {found['evaluation_epsilon']:g} for a noisy evaluation of the "
                "model on its test patients"
            )
    return [
        f"study {found['study']} ({found['digest'][:12]}) at site {found['site']}",
        f"  sites: {', '.join(found['sites'])}",
        f"  patient column: {found['patient'] or 'none: every row is its own unit'}; outcome: "
        f"{found['outcome']}",
        f"  features: {', '.join(found['features'])}",
        f"  declared size: {found['patients']:,} patients, edition {found['edition']}",
        f"  promise: {promise}",
        f"  methods: {', '.join(found['methods'])}; {found['rounds']} rounds, {found['seeds']} "
        f"seeds, {found['folds']} folds",
        f"  protection: {protection['sum']} sum, {protection['aggregation']}{bound}",
    ]


@command(app, "suture site status boston --json")
def status(home: Home, as_json: Json = False) -> None:
    """Connected or not, last round, last error, and what is left of every budget; from the site's
    own files."""
    from suture.network.enrolment import site_status

    found = site_status(home)
    counts = f"{found['answered']} answered, {found['refused']} refused"
    lines = [f"site {found['site']}: {found['connection']}, {counts}"]
    if found.get("op"):
        what = f"{found['op']} {found.get('method', '')} round {found.get('round', '-')}"
        lines.append(f"  last: {what} at {found['at']}")
    if found["last_error"]:
        lines.append(f"  last error: {found['last_error']}")
    for budget in found["budgets"]:
        spent = f"epsilon {budget['spent']:.4g} of {budget['epsilon']} spent"
        lines.append(f"  {budget['account']}: {spent}")
    answer(found, as_json, *lines)
