"""A federation of real processes that a test can break: a hub with its database, sites, a
coordinator.

Every site keeps its secret, so a run that was disturbed must end with the very model of a run that
was not.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd

from support.ready import sign
from suture import cohorts
from suture.engine import conduct
from suture.network import certificates
from suture.network.coordinator import Remote
from suture.network.flower import Flower, Hub
from suture.network.hub import READY, make_hub, read_operator
from suture.network.settings import SiteSettings
from suture.network.witnesses import new_identity
from suture.privacy.ledger.ledger import Ledger
from suture.site.gate import place_of
from suture.study import Site, Study

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SITES = ("north", "east", "south")
ACCOUNT = "faults/fedadam"
ROUNDS = 3
DECLARED = 60
"""Training patients that the study declares for each site."""


def wait_for(condition, seconds=120.0, what="it"):
    """Wait until the condition holds; a test never waits for ever."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


def the_study(sites=None, *, evaluation=0.0, **federation):
    """Three hospitals whose rows only they know the place of; a promise; three rounds, and by
    default no charged evaluation after them: tests count what training was charged."""
    cohort = cohorts.load("cardio", 5, patients=300)
    return Study(
        name="faults",
        outcome="high_risk",
        seed=5,
        schema=cohort.schema,
        sites=[
            {**site, "patients": DECLARED} for site in sites or [{"name": name} for name in SITES]
        ],
        model={"hidden": [4]},
        method={"name": "fedadam", "rounds": ROUNDS, "local_epochs": 1},
        privacy={"unit": "patient", "epsilon": 8.0, "accountant": "rdp"},
        evaluation={"epsilon": evaluation},
        federation={"deadline": 30.0, "gathering": 30.0, **federation},
    )


def the_tables(folder):
    """A table and a secret for each hospital."""
    cohort = cohorts.load("cardio", 5, patients=300)
    for number, (name, site) in enumerate(zip(SITES, cohort.sites, strict=False)):
        home = folder / name
        home.mkdir(parents=True)
        pd.DataFrame(dict(site.table)).to_csv(home / "rows.csv", index=False)
        (home / "secret.key").write_bytes(bytes([number + 1]) * 32)


def reference(tables, folder, **federation):
    """The undisturbed run, in one process, on a copy of the tables and secrets."""
    shutil.copytree(tables, folder)
    sites = [{"name": name, "data": f"{name}/rows.csv", "home": name} for name in SITES]
    return conduct.run(the_study(sites, **federation), base=folder, threads=1)


class Nursery:
    """The process from which all others of a test come."""

    def __init__(self, log):
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "nursery.py")],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE.parent)])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._process.stdout.readline()

    def fork(self, call, *arguments, namespace=None):
        order = {"call": call, "arguments": arguments, "namespace": namespace}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)  # the children die with it
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def alive(pid):
    return Path(f"/proc/{pid}").exists()


class Rig:
    """One federation in ``folder``; ``namespace`` is where everything is, but for a site that is
    ``away``."""

    def __init__(
        self,
        folder,
        tables,
        nursery,
        *,
        host="localhost",
        bind="127.0.0.1",
        namespace=None,
        away=None,
    ):
        self.folder, self.nursery, self.host, self.bind = folder, nursery, host, bind
        self.namespace, self.away = namespace, away
        shutil.copytree(tables, folder / "sites")
        self.homes = {name: folder / "sites" / name for name in SITES}
        self.hub_folder = folder / "hub"
        self._pids = {}
        self.connection = None
        self.identities, self.witness = {}, {}
        make_hub(self.hub_folder, list(dict.fromkeys([host, "localhost"])), _free_port())
        self.start_hub()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self._pids):
            self.kill(name)
        if self.connection is not None:
            self.connection.close()

    def kill(self, name):
        """-9, and wait until it is gone."""
        pid = self._pids.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid), what=f"the end of {name}")

    def fork(self, name, call, *arguments, namespace=None):
        self._pids[name] = self.nursery.fork(
            call, *arguments, namespace=namespace or self.namespace
        )
        return self._pids[name]

    # --- the hub -----------------------------------------------------------------------------------------------------

    def start_hub(self):
        (self.hub_folder / READY).unlink(missing_ok=True)
        self.fork("hub", "hub", str(self.hub_folder), self.bind, str(self.folder / "hub.log"))
        wait_for((self.hub_folder / READY).exists, what="the hub")

    def operator(self):
        """The operator's connection, once the hub answers."""
        self.connection = self.connection or Hub(read_operator(self.hub_folder))
        answering(self.connection)
        return self.connection

    def enrol(self, name):
        enrol(self.operator(), self.hub_folder, self.homes[name], name)

    def revoke(self, name):
        hub = self.operator()
        hub.unregister(hub.nodes()[name])

    # --- sites -------------------------------------------------------------------------------------------------------

    def introduce(self):
        """Identities for all sites, and each one's written down at the others, which are its
        witnesses from then on."""
        self.identities = {name: new_identity(self.homes[name] / "identity.key") for name in SITES}

    def start_site(self, name, *, where=None, round_=2, away=False, **settings):
        """Start a site's process; ``where`` it will stop and wait to be killed or let go."""
        port = json.loads((self.hub_folder / READY).read_text())["port"]
        home = self.homes[name]
        for mark in ("reached", "go"):
            (self.folder / f"{name}.{mark}").unlink(missing_ok=True)
        hold = where and {
            "where": where,
            "round": round_,
            "reached": str(self.folder / f"{name}.reached"),
            "go": str(self.folder / f"{name}.go"),
        }
        site = {
            "settings": {
                "name": name,
                "hub": {"address": f"{self.host}:{port}"},
                "data": {"path": "rows.csv"},
                "charter_needed": False,
                "accepts": [the_study().digest, the_study(evaluation=None).digest],
                "tick": 0.0,
                "exact_metrics": "scores",
                "poll_seconds": 0.2,
                "peers": {peer: key for peer, key in self.identities.items() if peer != name},
                **settings,
            },
            "witness": self.witness.get(name),
            "home": str(home),
            "base": str(home),
            "ledgers": str(home),
            "log": str(home / "site.log"),
        }
        own = SiteSettings.model_validate(site["settings"])
        for digest in own.accepts:
            sign(place_of(own.site(Site(name=name)), home), digest)
        self.fork(name, "site", site, hold, namespace=self.away if away else None)

    def reached(self, name):
        """Wait until the site has come to where it stops."""
        wait_for((self.folder / f"{name}.reached").exists, what=f"{name} to stop")

    def let_go(self, name):
        (self.folder / f"{name}.go").write_text("go")

    def status(self, name):
        file = self.homes[name] / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    # --- a run -------------------------------------------------------------------------------------------------------

    def all_sites(self, **first):
        """Enrol and start all sites; ``first`` is about the first one."""
        for name in SITES:
            self.enrol(name)
            self.start_site(name, **(first if name == SITES[0] else {}))

    def run(self, study):
        """Start a run in a thread; `Run.end` waits for it."""
        self.operator()
        out = self.folder / "run"
        if study is not None and (out / "run.json").exists():
            out = self.folder / f"run-{study.digest[:8]}"
        return Run(study, self.hub_folder, out)

    def charged(self, name, account=ACCOUNT):
        """How many charges the site's ledger holds, after its whole chain was verified."""
        return len(self.rounds_charged(name, account))

    def rounds_charged(self, name, account=ACCOUNT):
        """The round of every charge in the site's ledger, in order."""
        ledger = Ledger.open(self.homes[name] / "ledger.sqlite", name)
        try:
            ledger.verify()
            return [entry.round for entry in ledger.entries(account)]
        finally:
            ledger.close()


class Run(threading.Thread):
    def __init__(self, study, hub, out):
        super().__init__(daemon=True)
        self.study, self.hub, self.out = study, hub, out
        self.result = self.error = None
        self.seconds = 0.0
        self.start()

    def run(self):
        begun = time.monotonic()
        try:
            engine = Remote(Flower(Hub(read_operator(self.hub))))
            if (self.out / "run.json").exists():
                self.result = conduct.resume(self.out, engine=engine)
            else:
                self.result = conduct.run(
                    self.study, base=self.out.parent, out=self.out, engine=engine
                )
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - begun

    def end(self, seconds=60.0):
        self.join(seconds)
        if self.is_alive():
            raise TimeoutError("the run hangs")
        if self.error is not None:
            raise self.error
        return self.result


def answering(hub):
    """Wait until the hub answers its operator."""

    def answers():
        with contextlib.suppress(Exception):
            hub.nodes()
            return True
        return False

    wait_for(answers, what="the hub's answer")


def enrol(hub, hub_folder, home, name):
    """A new key for a site, known to the hub."""
    key = certificates.new_key()
    certificates.write_secret(home / "node.key", certificates.key_bytes(key))
    shutil.copy(hub_folder / "ca.pem", home / "ca.pem")
    hub.register(name, certificates.public_pem(key.public_key()))


def enrol_all(folder):
    """From inside a namespace that the test itself is not in."""
    hub = Hub(read_operator(folder / "hub"))
    answering(hub)
    for name in SITES:
        enrol(hub, folder / "hub", folder / "sites" / name, name)
    hub.close()


def same(one, other):
    """Bit for bit the same model, and the same promise kept."""
    assert one.model.keys() == other.model.keys()
    assert all(np.array_equal(one.model[name], other.model[name]) for name in one.model)
    assert one.data["privacy"]["epsilon"] == other.data["privacy"]["epsilon"]


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
