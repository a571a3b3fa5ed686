"""``suture charter``: write down what a board approved, sign it, and check a study against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from suture.cli.options import Json, StudyFile, answer, argument, command, group, option, say
from suture.errors import CharterError, RunError, StudyError

app = group(
    "charter",
    "What an ethics board approved: written, signed, and checked against a study.",
    "suture charter new study.toml --protocol 2026-14 --expires 2027-12-31 > charter.toml",
)


@dataclass(frozen=True)
class Law:
    """What data protection law asks for."""

    lawful_basis: Annotated[
        str, option("On which law the processing rests, as GDPR Art. 6(1)(e), 9(2)(j).")
    ] = ""
    purpose: Annotated[str, option("What the study is for, in a sentence.")] = ""
    controller: Annotated[str, option("Who answers for it, and how to reach them.")] = ""
    automated_decisions: Annotated[
        str,
        option('What the model may decide: none, "reviewed by a person", "without a person".'),
    ] = ""
    retention: Annotated[
        str | None, option("The last day on which models and results may be kept.")
    ] = None
    require_masked: Annotated[
        bool, option("Let figures leave as sums under masks only.", "--require-masked")
    ] = False
    require_deidentified: Annotated[
        bool,
        option("Ask every site for a table that suture deid wrote.", "--require-deidentified"),
    ] = False

    def plain(self) -> dict[str, Any]:
        """As a charter takes it."""
        return {**asdict(self), "retention": _day(self.retention) if self.retention else None}


@command(
    app, "suture charter new study.toml --protocol 2026-14 --expires 2027-12-31 > charter.toml"
)
def new(
    study: StudyFile,
    law: Law,
    protocol: Annotated[str, option("The ethics protocol's identifier.")],
    expires: Annotated[str, option("The last day on which the study may run, as 2027-12-31.")],
    valid_from: Annotated[str | None, option("The first day. Default: today.")] = None,
    minimum_sites: Annotated[
        int | None, option("Sites that must take part. Default: all of them.")
    ] = None,
    exact_metrics: Annotated[
        bool, option("Allow exact metrics about held-out patients to leave. Default: withheld.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the charter that allows exactly this study, for the board to read and sign."""
    from pydantic import ValidationError

    from suture.engine.federation import request
    from suture.privacy.charter import Charter, Signed
    from suture.study import Study

    asked = Study.from_toml(study)
    if not asked.sites or asked.table is None:
        raise StudyError(
            "a charter is for sites with patients of their own; this study's cohort is generated"
        )
    if asked.simulation:
        raise StudyError(
            "a simulation needs no charter, and none allows it; remove simulation = true from "
            "[study]"
        )
    wanted = request(asked, asked.table, asked.sites[0].name)
    if wanted.epsilon is None or wanted.delta is None:
        raise StudyError("a charter states an epsilon; add [privacy] with epsilon to the study")
    many = len(wanted.methods)
    try:
        charter = Charter(
            study=wanted.study,
            plan=wanted.plan,
            protocol=protocol,
            valid_from=_day(valid_from),
            expires=_day(expires),
            outcome=wanted.outcome,
            features=wanted.features,
            groups=wanted.groups,
            cohort=wanted.cohort,
            regions=tuple(dict.fromkeys(wanted.regions.values())),
            sites=tuple(wanted.regions),
            minimum_sites=minimum_sites or wanted.sites_a_round,
            epsilon=wanted.epsilon * many,
            delta=wanted.delta * many,
            methods=wanted.methods,
            exact_metrics=exact_metrics,
            **law.plain(),
        )
    except ValidationError as error:
        raise CharterError(
            "; ".join(p["msg"].removeprefix("Value error, ") for p in error.errors())
        ) from None
    found = {"charter": charter.plain(), "digest": charter.digest}
    answer(found, as_json, lambda _: typer.echo(Signed(charter).to_toml(), nl=False))


@command(app, "suture charter keygen board")
def keygen(
    name: Annotated[str, argument("The keys are written to NAME.key and NAME.pub.")],
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key pair: the board keeps NAME.key, the sites get NAME.pub."""
    from suture.privacy.signing import new_keys

    private, public = Path(f"{name}.key"), Path(f"{name}.pub")
    made = new_keys(private, public)
    found = {"private": str(private), "public": str(public), "key": made}
    shown = (f"{private} (keep it secret)", f"{public} (for the sites' trust.pub)", f"key {made}")
    answer(found, as_json, *shown)


@command(app, "suture charter sign charter.toml --key board.key")
def sign(
    charter: Annotated[Path, argument("The charter file; the signature is written into it.")],
    key: Annotated[Path, option("The board's private key.")],
    as_json: Json = False,
) -> None:
    """Sign a charter; several may sign, and one that a site trusts is enough."""
    from suture.privacy.charter import read_charter
    from suture.privacy.files import write_whole
    from suture.privacy.signing import key_id, read_private

    private = read_private(key)
    signed = read_charter(charter).signed_by(private)
    write_whole(charter, signed.to_toml().encode())
    digest, by = signed.charter.digest, key_id(private.public_key())
    found = {"charter": str(charter), "digest": digest, "key": by}
    answer(found, as_json, f"{charter}: charter {digest} signed by key {by}")


@command(app, "suture charter check charter.toml study.toml --trust board.pub")
def check(
    charter: Annotated[Path, argument("The signed charter.")],
    study: StudyFile,
    trust: Annotated[Path, option("The trusted public key or keys.")],
    site: Annotated[str | None, option("One site. Default: every site of the study.")] = None,
    on: Annotated[str | None, option("The day to check for. Default: today.")] = None,
    as_json: Json = False,
) -> None:
    """Say whether the gate would admit the study, and every reason why not. Exit code 4 if not."""
    from suture.engine.federation import request
    from suture.site.gate import Papers, place_of
    from suture.site.gate import check as ask
    from suture.study import Study

    asked = Study.from_toml(study)
    names = [found.name for found in asked.sites if site in (None, found.name)]
    if not names or asked.table is None:
        raise StudyError(
            f"the study has no site {site!r} of its own"
            if site
            else "the study has no sites of its own"
        )
    day = _day(on)
    if not charter.exists():
        raise RunError(
            f"there is no charter at {charter}; write one with: suture charter new {study} > "
            f"{charter}"
        )
    base = study.resolve().parent
    tables = {
        one.name: place_of(one, base).papers.tables if one.data else None for one in asked.sites
    }
    found = {}
    for name in names:
        papers = Papers(charter, trust, tables=tables[name])
        reasons = ask(papers, request(asked, asked.table, name), day)[1]
        found[name] = [{"name": item.name, "why": item.text} for item in reasons]
    allowed = not any(found.values())
    answer({"allowed": allowed, "sites": found}, as_json)
    for name, why in found.items():
        text = "".join(f"\n  - {item['why']}" for item in why) or " allowed"
        (say if as_json or why else typer.echo)(f"{name}:{text}")
    if not allowed:
        raise typer.Exit(CharterError.exit_code)


def _day(text: str | None) -> date:
    """The day that is written there; without one, today."""
    try:
        return date.fromisoformat(text) if text else date.today()
    except ValueError:
        raise StudyError(f"expected a day written as 2027-12-31, found {text!r}") from None
