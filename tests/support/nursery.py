"""A process that forks hubs, sites and coordinators on request, so that the tests pay for the
imports once. A script.

Each line on standard input names a function of this file, its arguments and perhaps the network
namespace in which to call it; each line out is the process id of the child that does so.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path


def wait_here(hold):
    Path(hold["reached"]).write_text("here")
    until = time.monotonic() + 60
    while not Path(hold["go"]).exists() and time.monotonic() < until:
        time.sleep(0.01)


def hold_site(hold):
    """Make the site stop before it pays, between training and keeping its answer, or around sending
    it; or answer twice.

    ``masked``: after its words under masks have left, and before the sum can be opened.
    """
    from suture.network import flower, node
    from suture.site import hospital

    now = {"round": 0, "stage": ""}
    step, opened, send = hospital.Member.step, hospital.opened, flower.Fleet.send
    stage = node.Participant.stage

    def staged(self, given, body):
        now["stage"] = given["stage"]
        return stage(self, given, body)

    def stepped(self, method, message, round_):
        now["round"] = round_
        if hold["where"] == "before" and round_ == hold["round"]:
            wait_here(hold)
        return step(self, method, message, round_)

    def left(payload):
        if hold["where"] == "during" and now["round"] == hold["round"]:
            wait_here(hold)
        return opened(payload)

    def sent(self, reply, run):
        if hold["where"] == "late" and now["round"] == hold["round"]:
            wait_here(hold)
        send(self, reply, run)
        if hold["where"] == "twice":
            try:
                send(self, reply, run)
            except Exception as error:
                Path(hold["reached"]).write_text(f"{type(error).__name__}")
        if hold["where"] == "after" and now["round"] == hold["round"]:
            wait_here(hold)
        if hold["where"] == "masked" and (now["round"], now["stage"]) == (hold["round"], "mask"):
            wait_here(hold)

    node.Participant.stage = staged
    hospital.Member.step, hospital.opened, flower.Fleet.send = stepped, left, sent


def site(given, hold=None):
    """A site, as `suture.network.local` writes it. ``hold``: where it stops, in which round, and by
    which files it says so and is let go. ``witness``: what stands for another machine's memory of
    ledgers."""
    from suture.network.local import run_site

    os.environ.update({"SUTURE_WITNESS": given["witness"]} if given.get("witness") else {})
    if hold:
        hold_site(hold)
    run_site(given)


def hub(folder, bind, log):
    """A hub with its database."""
    from suture.network.hub import serve

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    serve(Path(folder), bind=bind)


def enrol_all(folder):
    """Enrol the rig's sites."""
    import rig

    rig.enrol_all(Path(folder))


def run(study, hub_folder, out):
    """A whole run."""
    from suture.engine import conduct
    from suture.network.coordinator import Remote
    from suture.network.flower import Flower, Hub
    from suture.network.hub import read_operator
    from suture.study import Study

    engine = Remote(Flower(Hub(read_operator(Path(hub_folder)))))
    conduct.run(Study.from_text(study), base=Path(out).parent, out=Path(out), engine=engine)


def enter(namespace):
    with open(f"/var/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def fork(order):
    child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        os.close(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if order.get("namespace"):
            enter(order["namespace"])
        globals()[order["call"]](*order["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    import uvicorn  # noqa: F401
    from flwr.superlink import main  # noqa: F401
    from flwr.superlink.cli import flower_superlink  # noqa: F401

    from suture.network.local import _warm

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not kept
    _warm()
    print("ready", flush=True)
    for line in sys.stdin:
        print(fork(json.loads(line)), flush=True)
