"""Engines run the same method objects in different places: in one process, or at sites behind a network.

| module | what it does | side |
|---|---|---|
| `embedded` | all sites in one process, one thread a core | one machine |
| `remote` | drives rounds at sites that are elsewhere, over a carrier | coordinator |
| `flower`, `local` | carriers: through a hub that runs; through one started here with its sites | coordinator |
| `hub` | Flower's SuperLink with a guard in front | hub |
| `node`, `desk`, `visit`, `settings` | the network, the checks, one study, the site's own decisions | site |
| `wire`, `parcels`, `application` | messages, their wrapping in Flower's, the app that a run names | all |
| `certificates`, `quiet` | keys, and Flower imported so that it reports to nobody | all |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from suture.errors import StudyError

if TYPE_CHECKING:
    from suture.federation import Engine

ENGINES = ("embedded", "flower")


def engine_of(name: str | None, hub: Path | None, threads: int | None = None, run: Path | None = None) -> Engine:
    """The engine that the command line names; a run that is resumed goes on where it began.

    >>> engine_of(None, None).name
    'embedded'
    >>> engine_of("ray", None)
    Traceback (most recent call last):
    suture.errors.StudyError: engine 'ray' is not known; expected one of: embedded, flower
    """
    if name is None and hub is None and run is not None:
        name, hub = _recorded(run)
    if name not in (None, *ENGINES):
        raise StudyError(f"engine {name!r} is not known; expected one of: {', '.join(ENGINES)}")
    if hub is None and name in (None, "embedded"):
        from suture.engines.embedded import Embedded

        return Embedded(threads)
    if hub is not None and name == "embedded":
        raise StudyError("--hub goes with --engine flower: the embedded engine has no network")
    from suture.engines.remote import Remote

    if hub is None:
        from suture.engines.local import LocalFlower

        return Remote(LocalFlower())
    from suture.engines.flower import Flower, Hub
    from suture.engines.hub import read_operator

    return Remote(Flower(Hub(read_operator(hub))), recorded={"engine": "flower", "hub": str(hub.resolve())})


def _recorded(run: Path) -> tuple[str | None, Path | None]:
    """Where an earlier part of a run took place."""
    try:
        found = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, None  # whoever opens the run's folder says what is wrong with it
    return found.get("engine"), Path(found["hub"]) if found.get("hub") else None
