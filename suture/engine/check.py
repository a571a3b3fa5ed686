"""One site's table and one study, before anything is promised: what is found in the rows, what the
study costs there, and whether its method can work with these sites. For the site alone; nothing is
written into its ledger."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suture.engine import federation
from suture.engine.plan import World, budget, plan_of, reserved
from suture.errors import StudyError
from suture.privacy.ledger.ledger import Ledger
from suture.schema.outcome import TWO
from suture.site import gate
from suture.site.check import LEVELS, Finding, check_table, say
from suture.site.preprocess import outcome_vocabulary
from suture.site.reading import Wanted
from suture.site.sources import SourceSpec
from suture.study import Study


def check_site(study: Study, place: gate.Place, base: Path) -> dict[str, Any]:
    """Figures and findings of one site, the worst first."""
    if study.table is None or place.home is None or not isinstance(place.source, SourceSpec):
        raise StudyError("a study on built-in patients has no table to check")
    today, declared = datetime.now(UTC).date(), study.declared(place.name)
    passage = federation.passing(study, place, place.home)
    holdout, labels = (
        federation.holdout(study, place),
        outcome_vocabulary(study.target or TWO),
    )
    about = (study.table, study.column, labels)
    wanted = Wanted(*about, holdout, str(study.seed), survival=study.survival)
    figures, found = check_table(place.source, wanted, place.name, passage, declared, today)
    if isinstance(place.test, SourceSpec):
        tested = Wanted(*about, 1.0, str(study.seed), survival=study.survival)
        more, others = check_table(place.test, tested, place.name, passage, None, today)
        figures["test"] = more["test"]
        found += [one._replace(column=f"{one.column} (test table)") for one in others]
    asked = federation.request(study, study.table, place.name)
    problems = gate.check(place.papers, asked, today)[1]
    found += [say("charter", problem=problem.text) for problem in problems]
    found += planned(study, place, base, int(figures["train"]))
    found.sort(key=lambda one: LEVELS.index(one.level))
    levels = [one.level for one in found]
    return {
        "site": place.name,
        "study": study.name,
        "digest": study.digest,
        "edition": place.edition,
        "figures": figures,
        "stop": levels.count("stop"),
        "look": levels.count("look"),
        "findings": [one._asdict() for one in found],
    }


def planned(study: Study, place: gate.Place, base: Path, train: int) -> list[Finding]:
    """What the study costs at the site, and the doubts of its methods, from public figures."""
    if study.table is None or study.privacy is None or not train:
        return []
    sizes = {site.name: site.patients or train for site in study.sites}
    world = World(
        study.seed, study.column, study.table, False, (), sizes, study.target or TWO,
        base=base, names=tuple(sizes), simulation=study.simulation,
    )  # fmt: skip
    found: list[Finding] = []
    if study.privacy.delta * sizes[place.name] >= 0.1:
        better = 10.0 ** -len(str(10 * sizes[place.name]))
        found.append(say("delta", train=sizes[place.name], better=better))
    with closing(_books(place)) as ledger:
        for name in study.methods:
            plan = plan_of(study, world, name)
            called, mine = plan.method.label, plan.sites.get(place.name)
            mine = mine or next(iter(plan.sites.values()))
            found.append(say("cost", method=called, plan=mine))
            if plan.evaluation is not None:
                tested = next(iter(plan.evaluation.sites.values()))
                found.append(say("evaluation", method=called, plan=tested))
            books = ledger.books()
            if not study.simulation and plan.account not in books.studies:
                why = books.too_much_to_open(plan.account, budget(study, mine), reserved([mine]))
                found += [say("lifetime", problem=problem) for problem in why]
            noise = {site: one.noise_multiplier for site, one in plan.sites.items()}
            people = {site: one.patients for site, one in plan.sites.items()}
            doubts = plan.method.foresees(noise, people, study.method.rounds)
            found += [say("method", level=d.level, method=called, problem=d.text) for d in doubts]
    return found


def _books(place: gate.Place) -> Ledger:
    """The site's ledger, to be read; where it has none yet, an empty one in memory."""
    if place.home is not None and (place.home / gate.LEDGER).exists():
        return Ledger.read(place.home / gate.LEDGER)
    ledger = Ledger.open(None, place.name, durable=False)
    gate.open_lifetime(place, ledger)
    return ledger
