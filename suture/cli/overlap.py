"""``suture overlap``: how many people attend several of a study's hospitals."""

from __future__ import annotations

from typing import Annotated

from suture.cli.options import Engines, Json, StudyFile, answer, command, group, option
from suture.errors import StudyError

app = group()


@command(app, "suture overlap study.toml --epsilon 0.1")
def overlap(
    study: StudyFile,
    where: Engines,
    epsilon: Annotated[
        float | None,
        option("What every site's ledger is charged; elsewhere the study says it (overlap = 0.1)."),
    ] = None,
    delta: Annotated[float | None, option("Default: the study's own, or 1e-5.")] = None,
    as_json: Json = False,
) -> None:
    """Count the people who attend several hospitals, with noise, charged to every site; and say what
    the promise means for them."""
    from suture.privacy.statement import people_words
    from suture.releases.overlap import overlap as count
    from suture.study import Study

    asked, base = Study.from_toml(study), study.resolve().parent
    if where.hub is not None or where.engine == "flower":
        if (epsilon, delta) != (None, None):
            raise StudyError(
                "--epsilon and --delta are for tables on this machine; sites that are elsewhere "
                "accept a study that says what it costs: overlap = 0.1 in [study]"
            )
        from suture.network.people import overlap_between

        with where.open() as engine:
            found = overlap_between(engine, asked, base)
        lines = [
            f"{' and '.join(pair['sites'])}: about {max(0, pair['people']):,} people "
            f"({pair['interval'][0]:,} to {pair['interval'][1]:,}, 95 %) in common"
            for pair in found["pairs"]
        ]
        answer(found, as_json, *lines, found["learns"])
        return
    if epsilon is None:
        raise StudyError("state what the count may cost every site: --epsilon 0.1")
    if where.unchecked:
        raise StudyError("suture overlap needs a signed ready at every site: leave --unchecked out")
    found = count(asked, base, epsilon=epsilon, delta=delta)
    low, high = found["interval"]
    words = people_words(asked.link_people, found)
    shown = f"about {max(0, found['people']):,} people ({low:,} to {high:,}, 95 %) attend several"
    answer({**found, "means": words}, as_json, shown, words, found["learns"])
