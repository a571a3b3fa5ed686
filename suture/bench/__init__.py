"""Speed beside what a user would pick instead (``suture bench``); needs the optional extras that it
compares with.

Every ratio says how many times faster Suture is. Both sides are measured in the same run on the
same machine: a ratio survives a slow machine, a number of seconds does not.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from suture.bench.fedcvr import Figures, Say, cores
from suture.errors import MissingExtra
from suture.privacy.software import VERSION

RATIOS = (
    "dpsgd_vs_opacus",
    "dpsgd_vs_plain_torch",
    "dpsgd_wide_vs_opacus",
    "fedcvr_vs_flower_opacus",
)
KEYS = (*RATIOS, "fedcvr_table_seconds")
"""What ``suture bench --json`` always holds; None where it was not measured, for the reason under
``skipped``."""

_PARTS = {"dpsgd": KEYS[:3], "flower": KEYS[3:4], "table": KEYS[4:]}
_LIBRARIES = ("numpy", "numba", "torch", "opacus", "flwr", "ray")


def measure(*, quick: bool = False, say: Say = lambda _: None) -> Figures:
    """Measure everything that the installed extras allow: `KEYS`, the raw ``figures``, ``skipped``,
    the ``machine``.

    A part whose extra is missing is None in the ratios and has its install command under
    ``skipped``; with ``quick`` so is the time for the whole of Table 7, of which ``figures`` then
    has only a scaled estimate.
    """
    found: Figures = dict.fromkeys(KEYS)
    skipped: dict[str, str] = {}
    figures: Figures = {}
    machine = _machine()
    if machine["load_before"] is not None and machine["load_before"] > 0.5:
        say(
            f"note: other work keeps this machine busy (load {machine['load_before']}); figures "
            "will be noisier"
        )
    for part, keys in _PARTS.items():
        try:
            figures[part] = _measure_part(part, quick, say)
        except MissingExtra as error:
            skipped.update(dict.fromkeys(keys, str(error)))
            say(f"skipped: {error}")
            continue
        found.update({key: figures[part].pop(key) for key in keys})
    if quick:
        skipped["fedcvr_table_seconds"] = (
            "not run with --quick; figures.table holds a scaled estimate: suture bench"
        )
    return {
        **found,
        "quick": quick,
        "skipped": skipped,
        "figures": figures,
        "machine": machine,
        "versions": _versions(),
    }


def _measure_part(part: str, quick: bool, say: Say) -> Figures:
    from suture.bench import dpsgd, fedcvr

    if part == "dpsgd":
        say("one DP-SGD step on Suture, Opacus and plain PyTorch, one thread each")
        return dict(dpsgd.measure(turns=3 if quick else 7))
    measured = fedcvr.measure if part == "flower" else fedcvr.measure_table
    return measured(quick=quick, say=say)


def _machine() -> Figures:
    """What the figures depend on, and how busy the machine was before we began."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        processor = next(names)
    load = None if os.name == "nt" else round(os.getloadavg()[0], 2)
    system = platform.system()
    return {"cores": cores(), "processor": processor, "system": system, "load_before": load}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"suture": VERSION, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
