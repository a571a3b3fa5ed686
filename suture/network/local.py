"""A whole federation on this machine: a hub and one process per site, over TLS with enrolled keys,
ended with the run.

Two processes are started: the hub, and a nursery (this module) that imports Suture once and forks
one process per site. Both hold a pipe to the coordinator. When the coordinator ends, however it ends, the pipe
closes and they end, and the sites with them: nothing is left running.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from typing_extensions import TypedDict

import suture
from suture.engine import federation
from suture.errors import RunError
from suture.models.dense import Dense
from suture.network import certificates
from suture.network.coordinator import Answers
from suture.network.hub import READY, make_hub, read_operator
from suture.network.node import Handler
from suture.network.settings import SiteSettings
from suture.network.witnesses import new_identity
from suture.privacy.noise.source import seeded_key
from suture.privacy.unit import Patients
from suture.site.gate import place_of
from suture.site.hospital import fault
from suture.study import Study
from suture.training.local import Local
from suture.training.mechanism import train

if TYPE_CHECKING:
    from suture.network.flower import Flower, Hub

START_SECONDS = 60.0
STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class LocalSite(TypedDict):
    settings: dict[str, object]
    home: str
    base: str
    ledgers: str
    log: str


class LocalFlower:
    """A carrier that starts its own hub and sites, and ends them."""

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        self._settings = dict(settings or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self._carrier: Flower | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.folder: Path | None = None

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Start the hub and the sites, unless they run already."""
        if self._carrier is not None:
            return
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(
                prefix="suture-", ignore_cleanup_errors=True
            )
            folder = Path(self._temporary.name)
        self.folder = folder / "federation"
        try:
            self._start(study, base, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, study: Study, base: Path, folder: Path) -> None:
        place = folder / "federation"
        hub = place / "hub"
        shutil.rmtree(hub, ignore_errors=True)
        make_hub(hub, ["localhost", "127.0.0.1"], 0)
        self._spawn(place / "hub.log", "suture.network.hub", str(hub))
        nursery = self._spawn(place / "sites.log", "suture.network.local", str(place))
        # Flower is imported here while both processes start.
        from suture.network.flower import Flower, Hub

        names = federation.survey(study.public(), base, study.seed, only="").names
        sites = [self._site(study, name, base, folder) for name in names]
        keys = [certificates.write_key(hub / f"{i}.key") for i in range(len(names))]
        peers = {name: new_identity(hub / f"{i}.identity") for i, name in enumerate(names)}
        address = f"localhost:{self._port(hub / READY, place / 'hub.log')}"
        connection = Hub(read_operator(hub), address)
        self._carrier = Flower(connection)
        public = (certificates.public_pem(key.public_key()) for key in keys)
        _enrol(connection, dict(zip(names, public, strict=True)))
        for i, site in enumerate(sites):
            site["settings"] |= {
                "identity": str(hub / f"{i}.identity"),
                "peers": peers,
                "hub": {
                    "address": address,
                    "certificate": str(hub / "ca.pem"),
                    "key": str(hub / f"{i}.key"),
                },
            }
        nursery.write(json.dumps(sites).encode() + b"\n")
        nursery.flush()

    def _site(self, study: Study, name: str, base: Path, folder: Path) -> LocalSite:
        """A site's settings: rows where the study says, its home there or in the run's folder."""
        own = next((site for site in study.sites if site.name == name), None)
        settings: dict[str, object] = {
            "name": name,
            "charter_needed": False,
            "exact_metrics": "scores",
            "compares_people": True,
            "accepts": [study.digest],
            "poll_seconds": 0.5,
        }
        home = folder / "federation" / "sites" / name
        if own is None:
            settings["cohort"] = True
        else:
            place_of(own, base)  # complains as the embedded engine does where no table is named
            home = base / (own.home or Path(".suture") / own.name)
            for key, source in (("data", own.data), ("test", own.test), ("consent", own.consent)):
                if source is not None:
                    there = source.under(base)
                    settings[key] = there.model_dump(mode="json", exclude_none=True)
            settings["region"] = own.region
            for key, path in (("charter", own.charter), ("trust", own.trust)):
                if path:
                    settings[key] = str(base / path)
            if own.lifetime:
                settings["lifetime"] = own.lifetime.model_dump(mode="json")
        return {
            "settings": settings | self._settings,
            "home": str(home),
            "base": str(base),
            "ledgers": str(folder),
            "log": str(folder / "federation" / "logs" / f"{name}.log"),
        }

    def _spawn(self, log: Path, *module: str) -> IO[bytes]:
        """Start a module's process; it ends when the pipe that is returned closes."""
        root = str(Path(suture.__file__).resolve().parents[1])
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0"},
            )
        self._processes.append(process)
        if process.stdin is None:
            raise RunError("the pipe to a process of the federation is closed")
        return process.stdin

    def _port(self, file: Path, log: Path) -> int:
        """Where the hub listens, once it does."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if file.exists():
                return int(json.loads(file.read_text())["port"])
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.02)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise RunError(f"the hub did not start; the end of its log ({log}):\n{tail}")

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> Answers:
        if self._carrier is None:
            raise RunError("the federation was not started")
        return self._carrier.exchange(requests, seconds)

    def close(self) -> None:
        """End the Flower run, the sites and the hub, in this order, by force if need be."""
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None
        for process in reversed(self._processes):
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        until = time.monotonic() + STOP_SECONDS
        for process in reversed(self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        if self.folder is not None:
            shutil.rmtree(self.folder / "hub", ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None


def _enrol(hub: Hub, keys: Mapping[str, bytes]) -> None:
    """Enrol the sites' public keys, once the hub answers."""
    from suture.network.flower import httpx

    until = time.monotonic() + START_SECONDS
    for name, key in keys.items():
        while True:
            try:
                hub.register(name, key)
                break
            except httpx.TransportError:
                if time.monotonic() > until:
                    raise RunError("the hub on this machine does not answer") from None
                time.sleep(0.05)


def _sites() -> None:
    """The nursery: everything is imported once, then one process per site is forked."""
    _warm()
    line = sys.stdin.buffer.readline()
    children = [_fork(site) for site in json.loads(line or b"[]")]
    sys.stdin.buffer.read()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS / 2
    while children and time.monotonic() < until:
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
        time.sleep(0.02)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _warm() -> None:
    """Load Flower and the compiled kernels once, before sites are forked."""
    import_module("suture.network.flower")
    network = Dense((2, 2, 1))
    nobody = Patients(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1], np.int32), np.arange(5))
    start = network.init(np.random.default_rng(0))
    plain = Local(epochs=1, batch=2)
    for local in (plain, replace(plain, clip=1.0, noise_multiplier=1.0)):
        train(network, start, nobody, local, seeded_key(0))
        network.predict(start, nobody.x)


def _fork(site: LocalSite) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(0)
        run_site(site)
        code = 0
    except Exception as error:  # its words may hold a value; its kind and place do not
        logging.getLogger("suture.site").error("the site's process ended: %s", fault(error))
    finally:
        os._exit(code)


def run_site(site: LocalSite) -> None:
    from suture.network.flower import SiteNode, silence

    home, log = Path(site["home"]), Path(site["log"])
    for folder in (home, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(filename=log, level=logging.INFO, format=form, force=True)
    silence()
    settings = SiteSettings.model_validate(site["settings"])
    handler = Handler(settings, home, base=Path(site["base"]), ledgers=Path(site["ledgers"]))
    service = SiteNode(settings, home, handler)
    signal.signal(signal.SIGTERM, lambda *_: service.end())
    service.serve()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _sites()
