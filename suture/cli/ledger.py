"""``suture ledger``: what a site's ledger says, whether it can be believed, and the statement for a
regulator."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suture.cli.options import Json, answer, argument, command, group, option, say
from suture.errors import CharterError, LedgerError, StudyError

if TYPE_CHECKING:
    from suture.privacy.ledger.chain import Head
    from suture.privacy.ledger.ledger import Ledger

app = group(
    "ledger",
    "What a site's ledger says, and whether it can be believed.",
    "suture ledger show --home .suture/boston",
)


@dataclass(frozen=True)
class Where:
    """Whose ledger: --home, or --study and --site."""

    home: Annotated[Path | None, option("The site's home folder, or a ledger file.")] = None
    study: Annotated[Path | None, option("Instead of --home: a study file, with --site.")] = None
    site: Annotated[str | None, option("The site's name in the study file.")] = None

    @property
    def path(self) -> Path:
        """Where the ledger is."""
        from suture.site.gate import LEDGER, named_place

        if self.home is not None and self.study is None and self.site is None:
            return _file(self.home)
        if self.home is not None or self.study is None or self.site is None:
            raise StudyError("give --home FOLDER, or --study FILE with --site NAME")
        return (named_place(self.study, self.site).home or Path()) / LEDGER

    def opened(self) -> closing[Ledger]:
        """The ledger, for reading."""
        from suture.privacy.ledger.ledger import Ledger

        return closing(Ledger.read(self.path))


def _file(home: Path) -> Path:
    return home if home.is_file() else home / "ledger.sqlite"


@command(app, "suture ledger show --home .suture/boston --last 20")
def show(
    where: Where,
    last: Annotated[int | None, option("Only the newest entries.", least=1)] = None,
    as_json: Json = False,
) -> None:
    """Every release with its time, study, round, event and the epsilon spent by then."""
    from suture.privacy.ledger.overview import overview, releases
    from suture.report.console import print_ledger

    with where.opened() as ledger:
        found = {**overview(ledger), "rows": releases(ledger)[-(last or 0) :]}
    names: dict[str, list[str]] = {}
    for item in found["accounts"]:
        names.setdefault(item["theorem"], []).append(item["account"])
    proofs = [f"{', '.join(accounts)}: {theorem}" for theorem, accounts in names.items()]
    answer(found, as_json, print_ledger, *proofs, f"all together: {found['total']['theorem']}")


@command(app, "suture ledger verify --home .suture/boston --json")
def verify(
    where: Where,
    witness: Annotated[
        Path | None, option("A head of this ledger that someone outside has kept.")
    ] = None,
    trust: Annotated[
        Path | None, option("With --witness: the public key that countersigned it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute the chain, check the file and the head kept apart; tampering is located. Exit code
    4 if found."""
    from suture.privacy.ledger.ledger import Untrusted

    path = where.path
    seen = _witness(witness, trust)
    try:
        with where.opened() as ledger:
            ledger.verify(seen)
            head, name = ledger.head(), ledger.site
    except LedgerError as error:
        entry = error.entry if isinstance(error, Untrusted) else None
        problem = {"verified": False, "ledger": str(path), "entry": entry, "problem": str(error)}
        answer(problem, as_json)
        say(f"suture: {error}")
        raise typer.Exit(error.exit_code) from None
    found = {
        "verified": True,
        "ledger": str(path),
        "site": name,
        "entries": head.entries,
        "head": head.hash,
        "witnessed": seen.witness.entries if seen and seen.witness else None,
    }
    shown = f"verified: {head.entries:,} entries of site {name!r}, the last with hash {head.hash}"
    answer(found, as_json, shown)


@command(app, "suture ledger export --home .suture/boston --out exported")
def export(
    where: Where,
    out: Annotated[Path, option("Folder to write into.")] = Path("exported"),
    as_json: Json = False,
) -> None:
    """Write ledger.json and ledger.csv (for the site) and statement.html (one page for a
    regulator)."""
    from suture.privacy.ledger.overview import FIELDS, overview, releases
    from suture.report.statement import export_ledger

    with where.opened() as ledger:
        ledger.verify()
        written = export_ledger(out, overview(ledger), releases(ledger), FIELDS)
    answer({"written": written}, as_json, *written)


@command(
    app, "suture ledger countersign --home .suture/boston --key hub.key --out boston.head.json"
)
def countersign(
    key: Annotated[Path, option("The witness's private key.")],
    out: Annotated[Path, option("Where the witness keeps the head, away from the site.")],
    where: Where,
    as_json: Json = False,
) -> None:
    """Sign the ledger's head as a witness: from now on the ledger must contain the entry it
    names."""
    from suture.privacy.ledger import chain as heads
    from suture.privacy.signing import read_private

    with where.opened() as ledger:
        ledger.verify()
        signed = heads.countersign(ledger.head(), read_private(key))
    out.write_text(json.dumps(asdict(signed), indent=1) + "\n", encoding="utf-8")
    shown = f"{out}: {signed.entries:,} entries of site {signed.site!r}"
    answer({"written": str(out), **asdict(signed)}, as_json, shown)


@command(app, "suture ledger write-off .suture/boston --yes", "write-off")
def write_off(
    home: Annotated[Path, argument("The site's home folder, or a ledger file.")],
    witness: Annotated[
        Path | None,
        option("A head of this ledger that someone outside has kept, countersigned or not."),
    ] = None,
    yes: Annotated[
        bool, option("Write it. Without this, only say what would be written.", "--yes")
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

    path = _file(home)
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
    found = {
        "site": name,
        "written": yes and bool(lost),
        "found": before.entries,
        "seen": [_figures(memory.head, "hash") for memory in lost],
        **_figures(after, "head"),
    }
    lines = [
        f"seen: {memory.head.entries:,} entries, epsilon {memory.head.epsilon:g}, delta "
        f"{memory.head.delta:g}; found: "
        f"{before.entries:,} entries, epsilon {before.epsilon:g}, delta {before.delta:g}; "
        f"{'all of it' if memory.anew else 'the difference'} counts as spent"
        for memory in lost
    ]
    if not lost:
        last = f"nothing to write off: the ledger of site {name!r} holds everything that is remembered of it"
    elif yes:
        last = (
            f"written off at site {name!r}: entry {after.entries:,}, epsilon {after.epsilon:g} and "
            f"delta {after.delta:g} reserved in all; accounts opened before are closed, so a study "
            "goes on under another name"
        )
    else:
        last = (
            "nothing was written; put the newest home back if there is one, or run again with --yes"
        )
    answer(found, as_json, *lines, last)


def _figures(head: Head, hash_as: str) -> dict[str, object]:
    return {
        "entries": head.entries,
        hash_as: head.hash,
        "epsilon": head.epsilon,
        "delta": head.delta,
    }


def _head(path: Path) -> Head:
    """A head in a file, with or without a countersignature."""
    from suture.privacy.ledger.chain import Head, Witness

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        signed = content.pop("witness", None)
        return Head(**content, witness=None if signed is None else Witness(**signed))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CharterError(f"{path} is not a head of a ledger ({type(error).__name__})") from None


def _witness(path: Path | None, trust: Path | None) -> Head | None:
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
