"""``suture ledger``: what a site's ledger says, whether it can be believed, and the statement for a
regulator."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suture.cli.options import Json, group, print_json, say
from suture.errors import CharterError, StudyError

if TYPE_CHECKING:
    from suture.privacy.ledger.ledger import Ledger

app = group(
    "ledger",
    "What a site's ledger says, and whether it can be believed.",
    "suture ledger show --home .suture/boston",
)

Home = Annotated[Path | None, typer.Option(help="The site's home folder, or a ledger file.")]
Study = Annotated[Path | None, typer.Option(help="Instead of --home: a study file, with --site.")]
Site = Annotated[str | None, typer.Option(help="The site's name in the study file.")]


def ledger_path(home: Path | None, study: Path | None, site: str | None) -> Path:
    """Where the ledger is, from --home or from --study and --site."""
    if (home is None) == (study is None) or (study is None) != (site is None):
        raise StudyError("give --home FOLDER, or --study FILE with --site NAME")
    if home is not None:
        return home if home.is_file() else home / "ledger.sqlite"
    from suture.site.gate import LEDGER, named_place

    place = named_place(Path(str(study)), str(site))
    return (place.home or Path()) / LEDGER


@app.command(epilog="Example: suture ledger show --home .suture/boston --last 20")
def show(
    home: Home = None,
    study: Study = None,
    site: Site = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the newest entries.")] = None,
    as_json: Json = False,
) -> None:
    """Every release with its time, study, round, event and the epsilon spent by then."""
    with _reading(ledger_path(home, study, site)) as ledger:
        from suture.privacy.ledger.overview import overview, releases

        found = {**overview(ledger), "rows": releases(ledger)[-(last or 0) :]}
    if as_json:
        print_json(found)
    else:
        from suture.report.console import print_ledger

        print_ledger(found)
        theorems = {item["account"]: item["theorem"] for item in found["accounts"]}
        for theorem in dict.fromkeys(theorems.values()):
            typer.echo(
                f"{', '.join(name for name, of in theorems.items() if of == theorem)}: {theorem}"
            )
        typer.echo(f"all together: {found['total']['theorem']}")


@app.command(epilog="Example: suture ledger verify --home .suture/boston --json")
def verify(
    home: Home = None,
    study: Study = None,
    site: Site = None,
    witness: Annotated[
        Path | None, typer.Option(help="A head of this ledger that someone outside has kept.")
    ] = None,
    trust: Annotated[
        Path | None, typer.Option(help="With --witness: the public key that countersigned it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute the chain, check the file and the head kept apart; tampering is located. Exit code
    4 if found."""
    from suture.errors import LedgerError
    from suture.privacy.ledger.ledger import Untrusted

    path = ledger_path(home, study, site)
    seen = _witness(witness, trust)
    try:
        with _reading(path) as ledger:
            ledger.verify(seen)
            head, name = ledger.head(), ledger.site
    except LedgerError as error:
        entry = error.entry if isinstance(error, Untrusted) else None
        if as_json:
            print_json(
                {"verified": False, "ledger": str(path), "entry": entry, "problem": str(error)}
            )
        say(f"suture: {error}")
        raise typer.Exit(error.exit_code) from None
    found = {
        "verified": True,
        "ledger": str(path),
        "site": name,
        "entries": head.entries,
        "head": head.hash,
    }
    if as_json:
        print_json({**found, "witnessed": seen.witness.entries if seen and seen.witness else None})
    else:
        typer.echo(
            f"verified: {head.entries:,} entries of site {name!r}, the last with hash {head.hash}"
        )


@app.command(epilog="Example: suture ledger export --home .suture/boston --out exported")
def export(
    home: Home = None,
    study: Study = None,
    site: Site = None,
    out: Annotated[Path, typer.Option(help="Folder to write into.")] = Path("exported"),
    as_json: Json = False,
) -> None:
    """Write ledger.json and ledger.csv (for the site) and statement.html (one page for a
    regulator)."""
    from suture.report.statement import export_ledger

    with _reading(ledger_path(home, study, site)) as ledger:
        from suture.privacy.ledger.overview import FIELDS, overview, releases

        ledger.verify()
        written = export_ledger(out, overview(ledger), releases(ledger), FIELDS)
    if as_json:
        print_json({"written": written})
    else:
        for name in written:
            typer.echo(name)


@app.command(
    epilog="Example: suture ledger countersign --home .suture/boston --key hub.key --out boston.head.json"
)
def countersign(
    key: Annotated[Path, typer.Option(help="The witness's private key.")],
    out: Annotated[
        Path, typer.Option(help="Where the witness keeps the head, away from the site.")
    ],
    home: Home = None,
    study: Study = None,
    site: Site = None,
    as_json: Json = False,
) -> None:
    """Sign the ledger's head as a witness: from now on the ledger must contain the entry it
    names."""
    from dataclasses import asdict

    from suture.privacy.ledger import chain as heads
    from suture.privacy.signing import read_private

    path = ledger_path(home, study, site)
    with _reading(path) as ledger:
        ledger.verify()
        signed = heads.countersign(ledger.head(), read_private(key))
    out.write_text(json.dumps(asdict(signed), indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json({"written": str(out), **asdict(signed)})
    else:
        typer.echo(f"{out}: {signed.entries:,} entries of site {signed.site!r}")


@app.command("write-off", epilog="Example: suture ledger write-off .suture/boston --yes")
def write_off(
    home: Annotated[Path, typer.Argument(help="The site's home folder, or a ledger file.")],
    witness: Annotated[
        Path | None,
        typer.Option(
            help="A head of this ledger that someone outside has kept, countersigned or not."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Write it. Without this, only say what would be written.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write off, as spent, what a ledger has forgotten: its home was restored from a backup, or
    deleted and made anew.

    The difference in epsilon and delta counts against the lifetime budget, and every account that
    was open is closed. What the site's peers remember is looked up in its home (rolled-back.json,
    written when they made it refuse).
    """
    from suture.network.witnesses import peers_memories
    from suture.privacy.ledger.ledger import Ledger, site_at

    path = home if home.is_file() else home / "ledger.sqlite"
    name = site_at(path)
    with closing(Ledger.open(path, name, rolled_back=True)) as ledger:
        lost = ledger.forgotten(
            *([_head(witness)] if witness else []), *peers_memories(path.parent).values()
        )
        before = ledger.head()
        if yes:
            for memory in lost:
                if not ledger.holds(memory.head):
                    ledger.write_off(memory.head, anew=memory.anew)
        after = ledger.head()
    seen = [
        {
            "entries": m.head.entries,
            "hash": m.head.hash,
            "epsilon": m.head.epsilon,
            "delta": m.head.delta,
        }
        for m in lost
    ]
    figures = {
        "entries": after.entries,
        "head": after.hash,
        "epsilon": after.epsilon,
        "delta": after.delta,
    }
    if as_json:
        print_json(
            {
                "site": name,
                "written": yes and bool(lost),
                "found": before.entries,
                "seen": seen,
                **figures,
            }
        )
        return
    if not lost:
        typer.echo(
            f"nothing to write off: the ledger of site {name!r} holds everything that is "
            "remembered of it"
        )
    for memory in lost:
        whole = "all of it" if memory.anew else "the difference"
        typer.echo(
            f"seen: {memory.head.entries:,} entries, epsilon {memory.head.epsilon:g}, delta "
            f"{memory.head.delta:g}; found: "
            f"{before.entries:,} entries, epsilon {before.epsilon:g}, delta {before.delta:g}; "
            f"{whole} counts as spent"
        )
    if lost and yes:
        typer.echo(
            f"written off at site {name!r}: entry {after.entries:,}, epsilon {after.epsilon:g} and "
            f"delta {after.delta:g} "
            "reserved in all; accounts opened before are closed, so a study goes on under another "
            "name"
        )
    elif lost:
        typer.echo(
            "nothing was written; put the newest home back if there is one, or run again with --yes"
        )


def _head(path: Path) -> Any:
    """A head in a file, with or without a countersignature."""
    from suture.privacy.ledger.chain import Head, Witness

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        signed = content.pop("witness", None)
        return Head(**content, witness=None if signed is None else Witness(**signed))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CharterError(f"{path} is not a head of a ledger ({type(error).__name__})") from None


def _witness(path: Path | None, trust: Path | None) -> Any:
    """The head that a witness has kept, its signature checked."""
    from suture.privacy.ledger.chain import witnessed
    from suture.privacy.signing import read_public

    if path is None:
        return None
    if trust is None:
        raise CharterError(
            "--witness needs --trust: the public key of whoever countersigned the head"
        )
    head = _head(path)
    if head.witness is None:
        raise CharterError(f"{path} is not a countersigned head")
    if not witnessed(head, read_public(trust)):
        raise CharterError(
            f"{path} is not countersigned by the key in {trust}, or was changed since"
        )
    return head


def _reading(path: Path) -> closing[Ledger]:
    from suture.privacy.ledger.ledger import Ledger

    return closing(Ledger.read(path))
