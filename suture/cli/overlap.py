"""``suture overlap``: how many people attend several of a study's hospitals."""

from __future__ import annotations

from typing import Annotated

from suture.cli.options import Json, StudyFile, answer, command, group, option

app = group()


@command(app, "suture overlap study.toml --epsilon 0.1")
def overlap(
    study: StudyFile,
    epsilon: Annotated[float, option("What every site's ledger is charged for the count.")],
    delta: Annotated[float | None, option("Default: the study's own, or 1e-5.")] = None,
    as_json: Json = False,
) -> None:
    """Count the people who attend several hospitals, with noise, charged to every site; and say what
    the promise means for them."""
    from suture.privacy.statement import people_words
    from suture.releases.overlap import overlap as count
    from suture.study import Study

    asked = Study.from_toml(study)
    found = count(asked, study.resolve().parent, epsilon=epsilon, delta=delta)
    low, high = found["interval"]
    words = people_words(asked.link_people, found)
    shown = f"about {max(0, found['people']):,} people ({low:,} to {high:,}, 95 %) attend several"
    answer({**found, "means": words}, as_json, shown, words, found["learns"])
