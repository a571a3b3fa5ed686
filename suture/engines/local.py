"""A whole federation on this machine: a hub and one process a site, over TLS with enrolled keys, ended with the run.

Two processes are started: the hub, and a nursery that imports Suture once and forks one process a site. Both hold a
pipe to the coordinator. When the coordinator ends, however it ends, the pipe closes and they end, and the sites with
them: nothing is left running.
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
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suture.errors import RunError, SutureError

if TYPE_CHECKING:
    from suture.engines.flower import Flower
    from suture.study import Study

START_SECONDS = 60.0
STOP_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class LocalFlower:
    """A carrier that starts its own hub and sites, and ends them."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._settings = dict(settings or {})
        self._processes: list[subprocess.Popen[bytes]] = []
        self._carrier: Flower | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.folder: Path | None = None

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of Flower objects sent and received by the coordinator."""
        return (self._carrier.bytes_down, self._carrier.bytes_up) if self._carrier else (0, 0)

    def start(self, study: Study, base: Path, folder: Path | None) -> None:
        """Start the hub and the sites, unless they run already."""
        if self._carrier is not None:
            return
        from suture.engines import quiet

        quiet.need_flower()
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True)
            folder = Path(self._temporary.name)
        self.folder = folder / "federation"
        try:
            self._start(study, base, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, study: Study, base: Path, folder: Path) -> None:
        from suture.engines.hub import READY, make_hub, read_operator

        place = folder / "federation"
        hub = place / "hub"
        shutil.rmtree(hub, ignore_errors=True)
        make_hub(hub, ["localhost", "127.0.0.1"], 0)
        self._spawn("hub", hub, place / "hub.log")
        nursery = self._spawn("sites", place / "sites.json", place / "sites.log")
        from suture.engines import certificates
        from suture.engines.flower import Flower, Hub

        names = site_names(study, base)
        keys = {name: certificates.new_key() for name in names}
        sites = [self._site(study, name, base, folder, hub) for name in names]
        for name, key in keys.items():
            certificates.write_secret(hub / f"{names.index(name)}.key", certificates.key_bytes(key))
        port = int(self._ready(hub / READY, place / "hub.log")["port"])
        connection = Hub(read_operator(hub), f"localhost:{port}")
        self._carrier = Flower(connection)
        self._enrol(connection, keys)
        identities = self._identities(names, hub)
        for i, site in enumerate(sites):
            site["settings"] |= identities[i]
            site["settings"]["hub"] = {
                "address": f"localhost:{port}",
                "certificate": str(hub / "ca.pem"),
                "key": str(hub / f"{i}.key"),
            }
        if nursery.stdin is None:
            raise RunError("the sites' pipe is closed")
        nursery.stdin.write(json.dumps(sites).encode() + b"\n")
        nursery.stdin.flush()

    def _site(self, study: Study, name: str, base: Path, folder: Path, hub: Path) -> dict[str, Any]:
        """One site's settings: its rows are where the study file says, its home is its own or in the run's folder."""
        own = next((site for site in study.sites if site.name == name), None)
        settings: dict[str, Any] = {
            "name": name,
            "charter_needed": False,
            "exact_metrics": "scores",
            "poll_seconds": 0.5,
        }
        home = folder / "federation" / "sites" / name
        if own is None:
            settings["cohort"] = True
        else:
            from suture.places import place_of

            place_of(own, base)  # the same complaint as the embedded engine's where the table is not named
            home = base / (own.home or Path(".suture") / own.name)
            under = {"data": own.data, "test": own.test, "consent": own.consent}
            settings |= {
                key: source.under(base).model_dump(mode="json", exclude_none=True)
                for key, source in under.items()
                if source is not None
            }
            settings["region"] = own.region
            for key in ("charter", "trust"):
                if getattr(own, key):
                    settings[key] = str(base / getattr(own, key))
            if own.lifetime:
                settings["lifetime"] = own.lifetime.model_dump(mode="json")
        settings |= self._settings
        log = folder / "federation" / "logs" / f"{name}.log"
        return {"settings": settings, "home": str(home), "base": str(base), "ledgers": str(folder), "log": str(log)}

    def _identities(self, names: tuple[str, ...], hub: Path) -> list[dict[str, Any]]:
        """For sums under masks: a key a site, and everybody's public half at everybody's."""
        from suture.engines.masking import new_identity

        public = {name: new_identity(hub / f"{i}.identity") for i, name in enumerate(names)}
        return [{"identity": str(hub / f"{i}.identity"), "peers": public} for i in range(len(names))]

    def _spawn(self, what: str, target: Path, log: Path) -> subprocess.Popen[bytes]:
        import suture

        root = str(Path(suture.__file__).resolve().parents[1])
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "suture.engines.local", what, str(target)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "FLWR_TELEMETRY_ENABLED": "0"},
            )
        self._processes.append(process)
        return process

    def _ready(self, file: Path, log: Path) -> dict[str, Any]:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if file.exists():
                found: dict[str, Any] = json.loads(file.read_text())
                return found
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.02)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise RunError(f"the hub did not start; the end of its log ({log}):\n{tail}")

    def _enrol(self, hub: Any, keys: Mapping[str, Any]) -> None:
        import httpx
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        until = time.monotonic() + START_SECONDS
        for name, key in keys.items():
            request = RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key()), name=name)
            while True:
                try:
                    hub.control.RegisterNode(request)
                    break
                except httpx.TransportError:
                    if time.monotonic() > until:
                        raise RunError("the hub on this machine does not answer") from None
                    time.sleep(0.05)

    def exchange(self, requests: Mapping[str, bytes], seconds: float) -> dict[str, bytes | SutureError]:
        """Through the hub on this machine."""
        if self._carrier is None:
            raise RunError("the federation was not started")
        return self._carrier.exchange(requests, seconds)

    def close(self) -> None:
        """End the Flower run, the sites and the hub, in this order; what does not end is made to."""
        if self._carrier is not None:
            with contextlib.suppress(SutureError):
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


def site_names(study: Study, base: Path) -> tuple[str, ...]:
    """The sites of a study, from what is public about it."""
    if study.cohort is None:
        return tuple(site.name for site in study.sites)
    from suture import world

    return world.survey(study, base, study.seed, only="").names


def _hub(folder: Path) -> None:
    """The hub's process: ends when the coordinator's pipe closes."""
    from suture.engines.hub import serve

    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    serve(folder, bind="127.0.0.1", port=0, database=":flwr-in-memory:")


def _end_with_the_pipe() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _sites() -> None:
    """The nursery: everything is imported once, then one process a site is forked."""
    import suture.engines.desk
    import suture.engines.node  # noqa: F401

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
    """Load the compiled kernels once, before the sites are forked, while the hub starts."""
    import numpy as np

    from suture.models.dense import Dense
    from suture.privacy.mechanisms import seeded_key
    from suture.privacy.unit import Patients
    from suture.training.local import Local, train

    network = Dense((2, 2, 1))
    nobody = Patients(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1], np.int32), np.arange(5))
    start = network.init(np.random.default_rng(0))
    for local in (Local(epochs=1, batch=2), Local(epochs=1, batch=2, clip=1.0, noise_multiplier=1.0)):
        train(network, start, nobody, local, seeded_key(0))
        network.predict(start, nobody.x)


def _fork(site: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(0)
        run_site(site)
        code = 0
    finally:
        os._exit(code)


def run_site(site: dict[str, Any]) -> None:
    """One site, until it is told to stop."""
    from suture.engines.desk import Desk
    from suture.engines.node import SiteNode
    from suture.engines.settings import SiteSettings

    home = Path(site["home"])
    home.mkdir(parents=True, exist_ok=True)
    log = Path(site["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    from suture.engines import quiet

    quiet.silence()
    settings = SiteSettings(**site["settings"])
    desk = Desk(settings, home, base=Path(site["base"]), ledgers=Path(site["ledgers"]))
    node = SiteNode(settings, home, desk)
    signal.signal(signal.SIGTERM, lambda *_: node.end())
    node.serve()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.argv[1] == "hub":
        _hub(Path(sys.argv[2]))
    else:
        _sites()
