"""Flower, imported so that it reports to nobody: no telemetry, no check for updates, no logging of its own.

Everything of Flower that Suture uses comes through here or is imported after it. A pinned version's own modules are
used (its Fleet, Runtime and Control clients and the SuperLink's application), not its command lines.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

from suture.errors import MissingExtra

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"


def need_flower() -> None:
    """`MissingExtra` where Flower is not installed."""
    if find_spec("flwr") is None:
        raise MissingExtra("a federation over a network needs Flower: pip install 'suture[flower]'")


def silence() -> None:
    """Flower's and its libraries' loggers say only what is wrong."""
    for name in ("flwr", "httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.ERROR)
