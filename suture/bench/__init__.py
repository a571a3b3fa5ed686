"""Speed side by side with what a user would pick instead; needs the optional extras it compares with.

`measure` is behind ``suture bench``. Every ratio says how many times faster Suture is, and both of its sides are
measured in the same run on the same machine: a ratio survives a slow machine, a number of seconds does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RATIOS = ("dpsgd_vs_opacus", "dpsgd_vs_plain_torch", "dpsgd_wide_vs_opacus", "fedcvr_vs_flower_opacus")
KEYS = (*RATIOS, "fedcvr_table_seconds")
"""What ``suture bench --json`` always holds; None where it was not measured, and ``skipped`` then says why."""

_PARTS = {"dpsgd": KEYS[:3], "flower": KEYS[3:4], "table": KEYS[4:]}
_LIBRARIES = ("numpy", "numba", "torch", "opacus", "flwr", "ray")


def measure(*, quick: bool = False, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure everything that the installed extras allow: `KEYS`, the raw ``figures``, ``skipped``, the ``machine``.

    A part whose extra is missing is None in the ratios and has its install command under ``skipped``; with ``quick`` so
    is the time for the whole of Table 7, of which only a scaled estimate is then among the figures.
    """
    from suture.errors import MissingExtra

    found: dict[str, Any] = dict.fromkeys(KEYS)
    skipped: dict[str, str] = {}
    figures: dict[str, Any] = {}
    machine = _machine()
    if machine["load_before"] is not None and machine["load_before"] > 0.5:
        say(f"note: other work keeps this machine busy (load {machine['load_before']}); figures will be noisier")
    for part, keys in _PARTS.items():
        try:
            figures[part] = _measure_part(part, quick, say)
        except MissingExtra as error:
            skipped.update(dict.fromkeys(keys, str(error)))
            say(f"skipped: {error}")
            continue
        found.update({key: figures[part].pop(key) for key in keys})
    if quick:
        skipped["fedcvr_table_seconds"] = "not run with --quick; figures.table holds a scaled estimate: suture bench"
    return {
        **found,
        "quick": quick,
        "skipped": skipped,
        "figures": figures,
        "machine": machine,
        "versions": _versions(),
    }


def _measure_part(part: str, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    from suture.bench import dpsgd, flower, table

    if part == "dpsgd":
        say("one DP-SGD step on Suture, Opacus and plain PyTorch, one thread each")
        return dict(dpsgd.measure(turns=3 if quick else 7))
    return flower.measure(quick=quick, say=say) if part == "flower" else table.measure(quick=quick, say=say)


def _machine() -> dict[str, Any]:
    """What the figures depend on, and how busy the machine was before we began."""
    import os
    import platform
    from contextlib import suppress
    from pathlib import Path

    from suture.bench.flower import cores

    processor = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"cores": cores(), "processor": processor, "system": platform.system(), "load_before": load}


def _versions() -> dict[str, str | None]:
    """Versions of what was measured; None where it is not installed."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from suture import __version__

    found: dict[str, str | None] = {"suture": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
