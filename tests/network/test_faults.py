"""Faults that a federation survives, each with real processes: a hub with its database, sites, a
coordinator.

After each: the run ends with the very model of an undisturbed run, or ends with a clear error; no
ledger holds fewer charges than were released; nothing waits beyond its deadline.
"""

import shutil
import subprocess
import time

import pytest

pytest.importorskip("flwr", reason="pip install 'suture[flower]'")
from support.rig import (
    ROUNDS,
    SITES,
    Nursery,
    Rig,
    alive,
    reference,
    same,
    the_study,
    the_tables,
    wait_for,
)

from suture.errors import BudgetExhausted, Reason, Refused, SutureError, TooFewSites
from suture.result import Result

FIRST, OTHERS = SITES[0], SITES[1:]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables") / "sites"
    the_tables(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tables, tmp_path_factory):
    return reference(tables, tmp_path_factory.mktemp("reference") / "sites")


@pytest.fixture(scope="module")
def evaluated(tables, tmp_path_factory):
    """The undisturbed run whose model is evaluated at the sites' cost, as is the default."""
    return reference(tables, tmp_path_factory.mktemp("evaluated") / "sites", evaluation=None)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    found = Nursery(tmp_path_factory.mktemp("nursery") / "log")
    yield found
    found.close()


@pytest.fixture
def rig(tables, nursery, tmp_path):
    with Rig(tmp_path / "rig", tables, nursery) as found:
        yield found


EVALUATED = ROUNDS + 2
"""The charges of a run whose model is evaluated: in two rounds of their own."""


def all_paid(rig, rounds=ROUNDS):
    """Exactly one charge a round at every site: none forgotten, none twice."""
    assert {name: rig.charged(name) for name in SITES} == dict.fromkeys(SITES, rounds)


@pytest.mark.parametrize("where", ["before", "during", "late", "after"])
def test_a_site_is_killed_around_its_step_and_comes_back(where, rig, undisturbed):
    rig.all_sites(where=where)
    run = rig.run(the_study())
    rig.reached(FIRST)
    rig.kill(FIRST)
    # Charged before anything was computed that leaves; before the charge, nothing was.
    assert rig.charged(FIRST) == (1 if where == "before" else 2)
    rig.start_site(FIRST)
    same(run.end(), undisturbed)
    all_paid(rig)


def test_a_slow_site_ends_the_run_at_its_deadline_and_the_run_is_resumed(rig, undisturbed):
    rig.all_sites(where="during")
    run = rig.run(the_study(deadline=8.0))
    with pytest.raises(
        TooFewSites,
        match=r"round 2: 2 sites answered, 3 are needed .*'north' gave no answer within 8 s",
    ):
        run.end()
    rig.let_go(FIRST)
    wait_for(lambda: rig.status(FIRST).get("round") == 2, what="the slow answer")
    same(
        rig.run(None).end(), undisturbed
    )  # the late answer is not lost: the same message gets the same bytes
    all_paid(rig)


def test_a_run_goes_on_without_a_slow_site_if_the_study_says_so_and_tells(rig, evaluated):
    rig.all_sites(where="during")
    found = rig.run(the_study(evaluation=None, deadline=8.0, minimum_sites=2)).end()
    method = found.data["methods"]["fedadam"]
    assert method["rounds_done"] == ROUNDS
    assert method["dropouts"][FIRST]["rounds"] >= 1
    assert not all((found.model[name] == evaluated.model[name]).all() for name in found.model)
    # The evaluation needs every site: there is none, and the result says why.
    assert found.data["metrics"]["sites"] == {}
    assert set(found.data["metrics"]["global"].values()) <= {None}
    assert (
        "2 sites answered, 3 are needed (north: " in found.data["metrics"]["evaluation"]["stopped"]
    )
    assert any("no private evaluation: round 1: 2 sites" in text for text in found.data["warnings"])
    # The slow site paid for what it computed, though nobody waited for it; the others also for the
    # evaluation's first round.
    assert rig.charged(FIRST) == 2
    assert {rig.charged(name) for name in OTHERS} == {ROUNDS + 1}


def test_the_hub_is_killed_and_started_again(rig, undisturbed):
    rig.all_sites(where="during")
    run = rig.run(the_study())
    rig.reached(FIRST)
    rig.kill("hub")
    rig.let_go(FIRST)
    rig.start_hub()
    same(run.end(), undisturbed)
    all_paid(rig)


def test_the_run_s_process_is_killed_and_resumed(rig, evaluated):
    rig.all_sites(where="during")
    rig.operator()
    asked = the_study(evaluation=None).to_toml()
    rig.fork("run", "run", asked, str(rig.hub_folder), str(rig.folder / "run"))
    rig.reached(FIRST)
    rig.kill("run")
    rig.let_go(FIRST)
    same(rig.run(None).end(), evaluated)
    all_paid(rig, EVALUATED)


def test_answers_that_come_twice_are_taken_once(rig, evaluated):
    rig.all_sites(where="twice")
    same(rig.run(the_study(evaluation=None)).end(), evaluated)
    all_paid(rig, EVALUATED)


def test_a_site_that_starts_late_is_waited_for(rig, undisturbed):
    for name in SITES:
        rig.enrol(name)
    for name in OTHERS:
        rig.start_site(name)
    run = rig.run(the_study())
    time.sleep(1.0)
    rig.start_site(FIRST)
    same(run.end(), undisturbed)


def test_a_site_comes_in_when_rounds_have_gone_by_without_it(rig):
    rig.all_sites(where="before", round_=1)
    rig.kill(OTHERS[0])
    rig.start_site(OTHERS[0], where="during", round_=2)
    run = rig.run(the_study(deadline=8.0, minimum_sites=2))
    rig.reached(FIRST)
    rig.kill(FIRST)
    rig.reached(OTHERS[0])  # round 1 is over, without the first site
    rig.start_site(FIRST)
    wait_for(lambda: rig.status(FIRST).get("connection") == "connected", what="the site")
    rig.let_go(OTHERS[0])
    found = run.end()
    missed = found.data["methods"]["fedadam"]["dropouts"][FIRST]["rounds"]
    assert 1 <= missed < ROUNDS
    assert rig.charged(FIRST) == ROUNDS - missed
    assert {rig.charged(name) for name in OTHERS} == {ROUNDS}


def test_keys_and_certificates(rig, undisturbed):
    from suture.network import certificates

    rig.all_sites()
    wait_for(
        lambda: all(rig.status(name).get("connection") == "connected" for name in SITES),
        what="the sites",
    )
    # A certificate by another authority: the site says nothing to such a hub.
    rig.kill(FIRST)
    (rig.homes[FIRST] / "ca.pem").write_bytes(certificates.new_authority("somebody else")[0])
    rig.start_site(FIRST)
    wait_for(
        lambda: "CERTIFICATE_VERIFY_FAILED" in str(rig.status(FIRST).get("connection")),
        what="distrust",
    )
    with pytest.raises(TooFewSites, match=r"'north' gave no answer within 2 s"):
        rig.run(the_study(gathering=2.0)).end()
    # A key that was never enrolled.
    rig.kill(FIRST)
    shutil.copy(rig.hub_folder / "ca.pem", rig.homes[FIRST] / "ca.pem")
    enrolled = (rig.homes[FIRST] / "node.key").read_bytes()
    (rig.homes[FIRST] / "node.key").write_bytes(certificates.key_bytes(certificates.new_key()))
    rig.start_site(FIRST)
    wait_for(lambda: "not enrolled" in str(rig.status(FIRST).get("connection")), what="a refusal")
    # A key that was revoked.
    rig.kill(FIRST)
    (rig.homes[FIRST] / "node.key").write_bytes(enrolled)
    rig.revoke(FIRST)
    rig.start_site(FIRST)
    wait_for(lambda: "revoked" in str(rig.status(FIRST).get("connection")), what="a refusal")
    with pytest.raises(TooFewSites, match="not enrolled at the hub"):
        rig.run(the_study(gathering=2.0)).end()
    assert not (rig.homes[FIRST] / "ledger.sqlite").exists()


def test_a_key_revoked_during_a_run_shuts_the_site_out(rig):
    rig.all_sites(where="before")
    run = rig.run(the_study(deadline=8.0))
    rig.reached(FIRST)
    rig.revoke(FIRST)
    rig.let_go(FIRST)
    with pytest.raises(
        TooFewSites, match="'north' gave no answer within 8 s: it is not enrolled at the hub"
    ):
        run.end()


def test_a_site_whose_budget_does_not_hold_the_plan_refuses_at_once_while_the_others_go_on(rig):
    without = the_study([{"name": name} for name in OTHERS]).replace(name="without")
    for name in SITES:
        rig.enrol(name)
        own = (
            {"lifetime": {"epsilon": 6.0}}
            if name == FIRST
            else {"accepts": [the_study().digest, without.digest]}
        )
        rig.start_site(name, **{"lifetime": {"epsilon": 20.0}, **own})
    with pytest.raises(BudgetExhausted, match=f"site 'north' refused: {Reason.BUDGET.value}"):
        rig.run(the_study(minimum_sites=2)).end()
    all_paid(
        rig, 0
    )  # the whole plan is reserved before anybody trains, so nobody pays for a run that cannot end
    assert rig.run(without).end().data["methods"]["fedadam"]["rounds_done"] == ROUNDS
    assert {name: rig.charged(name, "without/fedadam") for name in OTHERS} == dict.fromkeys(
        OTHERS, ROUNDS
    )
    assert rig.charged(FIRST) == 0


@pytest.fixture
def small_disk(rig):
    home = rig.homes[FIRST]
    kept = {path.name: path.read_bytes() for path in home.iterdir()}
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(home)], capture_output=True
    )
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    for name, content in kept.items():
        (home / name).write_bytes(content)
    yield home
    rig.__exit__()
    subprocess.run(["umount", "-l", str(home)], check=True)


def test_a_full_disk_at_a_site(rig, small_disk, undisturbed):
    rig.all_sites(where="before")
    run = rig.run(the_study(deadline=10.0))
    rig.reached(FIRST)
    with (small_disk / "ballast").open("wb", buffering=0) as file:
        free = shutil.disk_usage(small_disk).free
        assert file.write(bytes(free + 4096)) <= free
    rig.let_go(FIRST)
    with pytest.raises(SutureError, match="north"):
        run.end()
    (small_disk / "ballast").unlink()
    rig.kill(FIRST)
    rig.start_site(FIRST)
    same(rig.run(None).end(), undisturbed)
    all_paid(rig)


def test_messages_that_are_too_large_or_malformed(rig, undisturbed):
    import ssl
    from http.client import HTTPSConnection

    from suture.network.flower import Flower
    from suture.network.wire import answer

    rig.all_sites(largest_message=1 << 20)
    hub = rig.operator()
    host, port = hub.address.split(":")
    context = ssl.create_default_context(cafile=str(rig.hub_folder / "ca.pem"))
    # A gigabyte: the hub says no before it reads a byte of it.
    connection = HTTPSConnection(host, int(port), context=context, timeout=10)
    connection.putrequest("POST", "/v1/fleet/push-messages")
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    # Through the hub in pieces, as an operator could: the site stops reading at its own limit.
    carrier = Flower(hub)
    try:
        for data in (bytes(3 << 20), b"", b"SUTQ" + b"\xff" * 40, b"SUTQ\x02\x00\x00\x00[]"):
            found = carrier.exchange({FIRST: data}, 20.0)[FIRST]
            with pytest.raises(Refused) as refused:
                answer(found, FIRST)
            assert refused.value.reason is Reason.REQUEST  # and not a word about what was wrong
    finally:
        carrier.end()
    log = (rig.homes[FIRST] / "site.log").read_text()
    assert "a request was not read: an answer of" in log
    assert "not an object" in log
    same(rig.run(the_study()).end(), undisturbed)


# --- a cut cable: two network namespaces with a pair of interfaces between them ------------------------------------------


@pytest.fixture
def cable():
    """The hub, the coordinator and two sites in one namespace, the third site in another."""
    here, there = "suture-hub", "suture-site"
    steps = [
        f"netns add {here}",
        f"netns add {there}",
        f"-n {here} link set lo up",
        f"-n {there} link set lo up",
        f"link add sut0 netns {here} type veth peer name sut1 netns {there}",
        f"-n {here} addr add 192.0.2.1/24 dev sut0",
        f"-n {there} addr add 192.0.2.2/24 dev sut1",
        f"-n {here} link set sut0 up",
        f"-n {there} link set sut1 up",
    ]

    def ip(arguments):
        return subprocess.run(["ip", *arguments.split()], capture_output=True).returncode

    try:
        if shutil.which("ip") is None or any(ip(step) for step in steps):
            pytest.skip("network namespaces need root and iproute2")
        yield here, there, lambda up: ip(f"-n {there} link set sut1 {'up' if up else 'down'}")
    finally:
        ip(f"netns del {here}")
        ip(f"netns del {there}")


def test_a_site_s_network_is_cut_and_comes_back(cable, tables, nursery, tmp_path, undisturbed):
    here, there, plug = cable
    with Rig(
        tmp_path / "rig",
        tables,
        nursery,
        host="192.0.2.1",
        bind="0.0.0.0",
        namespace=here,
        away=there,
    ) as rig:
        enrolling = rig.fork("enrolling", "enrol_all", str(rig.folder))
        wait_for(lambda: not alive(enrolling), what="the enrolment")
        rig.start_site(FIRST, away=True, where="during")
        for name in OTHERS:
            rig.start_site(name)
        run = rig.fork(
            "run", "run", the_study().to_toml(), str(rig.hub_folder), str(rig.folder / "run")
        )
        rig.reached(FIRST)
        assert plug(False) == 0
        rig.let_go(FIRST)
        time.sleep(2.0)
        assert alive(run)
        assert plug(True) == 0
        wait_for(lambda: not alive(run), what="the run")
        same(Result.load(rig.folder / "run"), undisturbed)
        all_paid(rig)
