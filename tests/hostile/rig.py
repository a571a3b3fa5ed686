"""What the attacks need: handlers with tables of the test's choice, requests, masked sums, and what a
site's ledger holds.

Everything that knows how a site is set up is in this file, so that the tests know the wire and the
public interface only.
"""

import csv
import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.batches import train_images_on_batches

from suture.engine import federation
from suture.engine import plan as planning
from suture.methods.registry import kept, known
from suture.network import masking, wire, witnesses
from suture.network.node import Handler
from suture.network.settings import SiteSettings
from suture.network.wire import application_hash
from suture.privacy import door
from suture.privacy.canonical import canonical
from suture.privacy.charter import Charter, Signed
from suture.privacy.ledger import chain
from suture.privacy.ledger.ledger import Ledger
from suture.privacy.noise.mechanisms import Counts, Pick
from suture.privacy.unit import Patients
from suture.protection import masked
from suture.protection.envelope import seal, unseal
from suture.protection.secure_sum import Share
from suture.protection.terms import ProtectionSpec
from suture.releases.query import release
from suture.schema.message import check_message
from suture.schema.table import feature_names
from suture.site import hospital
from suture.study import Site, Study
from suture.training.local import Local

BOARD = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SITES = ("north", "east", "south")
DECLARED = 64
HUGE = 3.0e38


# --- tables and studies ----------------------------------------------------------------------------------------------


def people(count, first=0, **columns):
    """Patients of one row each, always the same; ``columns`` replace a value, or are a function of
    the number."""
    found = []
    for i in range(first, first + count):
        row = {
            "id": f"p{i}",
            "visit": f"v{i}",
            "age": 20 + (i * 7) % 60,
            "smoker": i % 2,
            "high_risk": (i * 13) % 5 < 2,
        }
        row |= {name: value(i) if callable(value) else value for name, value in columns.items()}
        found.append(
            {name: int(value) if isinstance(value, bool) else value for name, value in row.items()}
        )
    return found


def study(names=SITES, *, declared=DECLARED, **more):
    """A small private study; tables may be given in part."""
    sites = [{"name": name, "region": "MA", **_declares(declared)} for name in names]
    fields = {
        "name": "cardio",
        "outcome": "high_risk",
        "sites": sites,
        "schema": {
            "patient": "id",
            "features": {
                "age": {"kind": "number", "low": 0, "high": 100},
                "smoker": {"kind": "flag"},
            },
        },
        "model": {"hidden": []},
        "method": {"name": "fedavg", "rounds": 3, "local_epochs": 1, "batch": 32},
        "privacy": {"unit": "patient", "epsilon": 4.0},
        "evaluation": {"holdout": 0.0},
    }
    for key, value in more.items():
        old = fields.get(key)
        fields[key] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    names = (fields["method"]["name"], *fields["evaluation"].get("compare", ()))
    if set(names) <= set(known()):
        fields["method"] = kept(fields["method"], names, ())
    return Study(**fields)


def _declares(patients):
    """A site's public size, where a study can state it."""
    return (
        {"patients": patients} if "patients" in Site.model_fields and patients is not None else {}
    )


def text_of(asked):
    return asked.public().to_toml() if isinstance(asked, Study) else asked


def as_study(asked):
    return asked if isinstance(asked, Study) else Study.from_text(asked)


def called(asked):
    """How a study is named after it was opened."""
    return as_study(asked).digest


def sizes_of(asked):
    found = as_study(asked)
    return {site.name: site.model_dump().get("patients") or DECLARED for site in found.sites}


def colluders(count):
    """What a study says about sites that side with the server, where it can say it."""
    return {"colluders": count} if "colluders" in ProtectionSpec.model_fields else {}


# --- a site ----------------------------------------------------------------------------------------------------------


def identity(name):
    return Ed25519PrivateKey.from_private_bytes(
        hashlib.sha256(f"identity of {name}".encode()).digest()
    )


def public_identity(name):
    return identity(name).public_key().public_bytes_raw().hex()


def write_rows(path, rows, columns=None):
    """A table; an empty one keeps its columns."""
    names = list(columns or (rows[0] if rows else people(1)[0]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def furnish(home, name, rows, asked=(), *, charter=None, columns=None):
    """A site's home: table, secret, identity, the studies that a person there accepted, and perhaps
    a charter."""
    home.mkdir(parents=True, exist_ok=True)
    write_rows(home / "rows.csv", rows, columns)
    (home / "secret.key").write_bytes(hashlib.sha256(f"secret of {name}".encode()).digest())
    (home / "identity.key").write_bytes(identity(name).private_bytes_raw())
    (home / "studies").mkdir(exist_ok=True)
    for number, accepted in enumerate([asked] if isinstance(asked, Study | str) else asked):
        (home / "studies" / f"{number}.toml").write_text(text_of(accepted), encoding="utf-8")
    if charter is not None:
        (home / "charter.toml").write_text(
            Signed(charter_of(charter)).signed_by(BOARD).to_toml(), encoding="utf-8"
        )
        (home / "trust.pub").write_bytes(public_pem())


def public_pem():
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return BOARD.public_key().public_bytes(serialization.Encoding.PEM, kind)


def charter_of(asked):
    """The charter that a board signs for exactly this study."""
    plan = {"plan": asked.digest} if "plan" in Charter.model_fields else {}
    return Charter(
        study=asked.name,
        protocol="2026-14",
        expires="2099-12-31",
        outcome=asked.asked,
        features=tuple(asked.table.features),
        groups=asked.table.groups,
        regions=("MA",),
        sites=tuple(site.name for site in asked.sites),
        minimum_sites=1,
        epsilon=asked.privacy.epsilon or 1e6,
        delta=asked.privacy.delta,
        exact_metrics=True,
        **plan,
    )


def handler(home, name, asked, *, charter=False, exact="none", **more):
    """A handler on a home that is there; one that is rebuilt on the same home was restarted."""
    peers = {other: public_identity(other) for other in sizes_of(asked) if other != name}
    settings = SiteSettings(
        name=name,
        hub={"address": "nowhere:1"},
        data="rows.csv",
        region="MA",
        charter_needed=charter,
        exact_metrics=exact,
        peers=peers,
        **{"witnesses": 0, "tick": 0.0, **more},
    )
    return Handler(settings, home)


def site(
    folder, name, rows, asked, *, accepted=None, charter=False, exact="none", columns=None, **more
):
    """A new site whose people have accepted ``accepted`` (by default the study asked)."""
    home = Path(folder) / name
    accepts = [asked] if accepted is None else accepted
    furnish(
        home, name, rows, accepts, charter=as_study(asked) if charter else None, columns=columns
    )
    return handler(home, name, asked, charter=charter, exact=exact, **more)


SILENT = {"heads": {}, "vouched": {}, "sites": {}, "groups": False, "texts": {}}
"""What a request says where a test says nothing: no peer has anything to say."""


# --- requests --------------------------------------------------------------------------------------------------------


def packed(op, body=b"", **given):
    """A request as bytes; keys that the operation does not have are left out, those that a test is
    silent about put in."""
    known = {
        key: value
        for key, value in {**SILENT, **given}.items()
        if key in wire.OPERATIONS.get(op, given)
    }
    return wire.pack(wire.request(op, body, **known))


def ask(at, op, body=b"", **given):
    """One request's answer: header and body."""
    answer = wire.unpack(at.answer(packed(op, body, **given), application_hash()))
    return answer.header, answer.body


def open_(at, asked, seed=None):
    return ask(
        at, "open", study=text_of(asked), seed=as_study(asked).seed if seed is None else seed
    )


def join(at, asked, seed=None, sizes=None):
    """Open and join; the answer to the join, or the refusal of the first of them."""
    header, body = open_(at, asked, seed)
    if not header["ok"]:
        return header, body
    counted = {header["site"]: header["patients"]} if "patients" in header else {}
    given = {**sizes_of(asked), **counted, **(sizes or {})}
    seed = as_study(asked).seed if seed is None else seed
    return ask(at, "join", study=called(asked), seed=seed, sites=given)


def training(asked, **more):
    found = as_study(asked)
    names = {"study": called(asked), "seed": found.seed, "fold": 0, "method": found.method.name}
    return {**names, **{key: value for key, value in more.items() if key in names}}


def step(at, asked, arrays, round_=1, **more):
    return ask(at, "step", seal(arrays), round=round_, **training(asked, **more))


def score(at, asked, arrays, round_=None, **more):
    last = as_study(asked).method.rounds if round_ is None else round_
    return ask(at, "score", seal(arrays), round=last, **training(asked, **more))


def arrays_of(body):
    return dict(unseal(body)) if body else {}


def looks(answer):
    """What of an answer does not carry noise: the whole header, and how long the body is."""
    header, body = answer
    if header.get(
        "head"
    ):  # the time of day and a fresh number are in it; in lock step it is compared whole
        chance = ("hash", "nonce", "signature")
        header = {
            **header,
            "head": {fact: said for fact, said in header["head"].items() if fact not in chance},
        }
    return json.dumps(header, sort_keys=True), len(body)


# --- methods ---------------------------------------------------------------------------------------------------------


def method_of(asked, fold=0, name=None):
    """The method object that every party builds from the study's text and the public sizes."""
    found = as_study(asked)
    here = federation.survey(found.public(), Path(), found.seed, only="")
    here.sizes = sizes_of(found)
    part = {part.fold or 0: part for part in federation.split(found, here)}[fold]
    return planning.method_of(found, part, name or found.method.name)


def features_of(asked):
    """The encoded columns."""
    return feature_names(as_study(asked).table)


def message_of(asked, round_=1, fold=0, name=None, **changed):
    """What an honest server of no experience would send in this round, with some of its numbers
    replaced."""
    method = method_of(asked, fold, name)
    state = method.init(tuple(sizes_of(asked)), np.random.default_rng(0))
    for count in ("t", "ensemble_t"):
        if count in state:
            state[count] = np.full_like(state[count], round_ - 1)
    message = dict(method.broadcast(state, next(iter(sizes_of(asked)))))
    return {key: array for key, array in {**message, **changed}.items() if array is not None}


@dataclass
class Opened:
    """A sum that was opened: its words, and who is in it."""

    words: dict
    sites: tuple


def summed(handlers, asked, arrays, round_=1, fold=0, leave=(), refused=None):
    """A coordinator's part in one sum under masks, in which the sites of ``leave`` are not asked to
    add.

    Raises the sites' refusals as `SutureError`; with ``refused`` (a list) they are put there too,
    stage by stage.
    """
    found = as_study(asked)
    names = training(asked, fold=fold)
    here = federation.survey(found.public(), Path(), found.seed, only="")
    here.sizes = sizes_of(found)
    part = {part.fold or 0: part for part in federation.split(found, here)}[fold]
    method = planning.method_of(found, part, found.method.name)
    method = method.at_round(round_, found.method.rounds)
    group = next(iter(masking.sums_of(method, list(part.sizes), round_)))
    sizes, message = {name: part.sizes[name] for name in group}, seal(arrays)
    answers = {}

    def carry(stage, bodies):
        told = masking.Asked({}, {})
        for name, body in bodies.items():
            if stage == "mask" and name in leave:
                told.absent[name] = "left out"
                continue
            header, answer = ask(handlers[name], "stage", body, round=round_, stage=stage, **names)
            if not header["ok"]:
                told.absent[name] = header["why"] if "why" in header else json.dumps(header)
                if refused is not None:
                    refused.append((stage, name, header))
                continue
            answers[name] = answer
            told.answers[name] = (header, answer)
        return told

    identities = {name: public_identity(name) for name in sizes}
    messages = dict.fromkeys(sizes, message)
    gathered, absent = masking.summed(
        method, found.protection, sizes, identities, messages, round_, names, carry
    )
    return Opened(
        dict(gathered.answers[0].payload), tuple(name for name in sizes if name not in absent)
    )


# --- what a site keeps -----------------------------------------------------------------------------------------------


def charges(home):
    """What a site's ledger was charged: account, round and event of each charge, in order."""
    path = Path(home) / "ledger.sqlite"
    if not path.exists():
        return []
    with closing(Ledger.read(path)) as ledger:
        return [(entry.study, entry.round, entry.event) for entry in ledger.entries()]


def ledger_state(home):
    """All of the chain that a head covers, and the head."""
    path = Path(home) / "ledger.sqlite"
    if not path.exists():
        return [], None
    with closing(Ledger.read(path)) as ledger:
        return [tuple(vars(row).values()) for row in ledger.rows()], repr(ledger.head())


def status(home):
    """The status file, which an operator may publish."""
    path = Path(home) / "status.json"
    return path.read_text(encoding="utf-8") if path.exists() else ""


class Clock:
    """A clock that goes on by a second whenever the ledger looks at it: two homes in lock step see
    the same times."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        self.now += timedelta(seconds=1)
        return self.now


# --- what one patient contributes (adapters: the redesign hands contributions to the door) ------------------------------


def contributions(asked, data, message, round_=1, own=None):
    """What leaves for the noise to be added: a list of (name, sensitivity, norm's order, exact
    vector, float spacing).

    Sums are taken where the door's mechanisms are about to add noise. A training is read off one
    step over everybody with next to no noise, the same for every table; entries too coarse to be
    read are marked by their spacing.
    """
    found = as_study(asked)
    site = next(iter(sizes_of(found)))
    method = _for_reading(method_of(found).at_round(round_, found.method.rounds))
    check_message(message, method.expects(round_, site))
    data = replace(data, declared=READ_AS)
    seen, noised, train = [], {kind: kind.noised for kind in MECHANISMS}, door.Session.train

    def spied(self, total, key):
        exact = np.asarray(total, np.float64)
        order = np.inf if self.entrywise else 2
        seen.append(
            (f"{type(self).__name__} {len(seen)}", self.limit, order, exact, np.zeros(exact.shape))
        )
        return noised[type(self)](self, total, key)

    def trained(self, name, job):
        out = job.run(self._data, bytes(32))
        before = {"params": job.start, "own": job.extra.get("own")}
        parts, spacings = [np.zeros(0)], [np.zeros(0)]
        for part in ("params", "own"):
            if part not in out:
                continue
            start = np.asarray(before[part], np.float32)
            anchor = (
                np.asarray(job.extra.get("anchor", start), np.float64)
                if part == "params"
                else start
            )
            public = job.local.proximal * (
                start.astype(np.float64) - anchor
            )  # drawn to a public place, in every step
            once = _once(job) if "layers" in job.extra and part == "own" else slice(None)
            coarse = np.maximum(np.abs(start), np.abs(public)).astype(np.float32)
            parts.append((start.astype(np.float64) - out[part] - public)[once] * READ_AS)
            spacings.append(
                np.spacing(coarse).astype(np.float64)[once]
                * READ_AS
                * (1024 if public.any() else 1)
            )
        seen.append(
            ("training", job.local.clip, 2, np.concatenate(parts), np.concatenate(spacings))
        )
        return train(self, name, job)

    try:
        for kind in MECHANISMS:
            kind.noised = spied
        door.Session.train = trained
        door.rehearse(method, data, dict(own or {}), message, READING, bytes(32), round_, site)
    finally:
        for kind in MECHANISMS:
            kind.noised = noised[kind]
        door.Session.train = train
    return seen


def allowed(asked, message, round_=1):
    """The message with every number brought into the range that a site checks first; what is
    refused moves nobody."""
    found = as_study(asked)
    fields = method_of(found).expects(round_, next(iter(sizes_of(found))))
    return {
        name: np.clip(array, fields[name].low, fields[name].high).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in message.items()
        if name in fields
    }


def contribution(asked, more, less, message, round_=1, own=None):
    """By how much one patient moves the worst of what leaves, and by how much at most; infinitely
    if only one table errs."""
    told = []
    for data in (more, less):
        try:
            told.append(contributions(asked, data, message, round_, own))
        except Exception as error:
            told.append(type(error).__name__)
    if isinstance(told[0], str) or isinstance(told[1], str):
        return (0.0, 1.0) if told[0] == told[1] else (np.inf, 1.0)
    worst = (0.0, 1.0)
    for (name, limit, order, one, spacing), (_, _, _, two, _) in zip(*told, strict=True):
        if one.shape != two.shape:
            return np.inf, 1.0
        both = (np.isnan(one) & np.isnan(two)) | (one == two)
        with np.errstate(invalid="ignore"):
            difference = np.where(both, 0.0, np.abs(one - two) - 8 * spacing)
        # The whole numbers of a training are read in steps of its weights' spacing, so this is what
        # is certain.
        difference = np.where(np.isnan(difference), np.inf, np.maximum(difference, 0.0))
        moved = float(np.linalg.norm(difference, order)) if len(difference) else 0.0
        slack = 1e-3 if name == "training" else 1e-9
        if moved / (limit * (1 + slack)) > worst[0] / worst[1]:
            worst = (moved, limit * (1 + slack))
    return worst


READING = 1e-9
"""A noise multiplier that changes nothing that can be read, and still takes the private path."""


READ_AS = 8
"""The declared size, which divides every sum: small, so that what a training changes can be
read."""
MECHANISMS = (Share, Pick, Counts)


def _once(job):
    """Which of the layers' numbers are numbers of their own: one that all columns share is kept
    once a column."""
    layers, (features, outputs) = job.extra["layers"], (job.network.sizes[0], job.network.sizes[-1])
    marks = []
    for kind, size, tied in (
        (layers.into, features, (True, True)),
        (layers.out, outputs, (False, True)),
    ):
        for number in tied if kind != "none" else ():
            marks += [True] + [not (number and kind == "scalar")] * (size - 1)
    return np.array(marks, bool)


def _for_reading(method):
    """The method with one step over all patients at rate 1, so that its change is the summed
    gradient / its divisor."""
    if not hasattr(method, "local"):
        return method
    local = replace(
        method.local, epochs=1, batch=1 << 20, rate=1.0, momentum=0.0, most_steps=1, proximal=0.0
    )
    changed = {"local": local}
    if hasattr(method, "inner"):
        changed["inner"] = _for_reading(method.inner)
    return replace(method, **changed)


def image_contribution(monkeypatch, patients):
    """How far a patient with two images moves the sum of ``patients`` who have one each, and the
    clip."""
    from suture.models.residual import Residual
    from suture.training import imaging

    monkeypatch.setattr(
        imaging, "GHOST", 0, raising=False
    )  # small networks take the path of large ones
    network = Residual(8, 8, 4)
    start = network.init(np.random.default_rng(3))
    image = np.random.default_rng(0).random(network.inputs, dtype=np.float32)
    local = Local(clip=0.05, noise_multiplier=1.0, rate=1.0, batch=patients)
    sums = []
    for more in (0, 2):
        rows = np.repeat(image[None], patients + more, axis=0)
        starts = np.append(np.arange(patients + 1), [patients + more] if more else [])
        data = Patients(rows, np.ones(len(rows), np.int32), starts, declared=patients)
        everybody = np.arange(data.patients)
        silent = np.zeros((1, network.n_params), np.float32)
        new = train_images_on_batches(network, start, data, local, [everybody], silent)
        sums.append((start.astype(np.float64) - new) * patients)
    return float(np.linalg.norm(sums[1] - sums[0])), local.clip


# --- lock step -------------------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """One release as the door saw it: whose handler, context, mechanism, exact total, and the key of
    the noise."""

    who: str
    context: bytes
    mechanism: bytes
    total: np.ndarray
    limit: float
    key: bytes = b""
    entrywise: bool = False


class Killed(BaseException):
    """The site's process dies here."""


@dataclass
class Watch:
    """What happens inside the twins' handlers while a test has taken the place of clock, noise and
    chance."""

    who: str = ""
    drawn: list = field(default_factory=list)
    words: list = field(default_factory=list)
    clocks: dict = field(default_factory=dict)
    chances: dict = field(default_factory=dict)
    die: str = ""

    def clock(self):
        return self.clocks.setdefault(self.who, Clock())()

    def chance(self):
        """Secrets of a session: the same for both twins, other ones each time."""
        self.chances[self.who] = self.chances.get(self.who, 0) + 1
        return hashlib.sha256(f"chance {self.chances[self.who]}".encode()).digest()

    def dies(self, where):
        if self.die == where:
            self.die = ""
            raise Killed(where)


def fake(context, array):
    """Something of the shape and type of ``array`` that depends on the context alone."""
    rng = np.random.default_rng(np.frombuffer(hashlib.sha256(context).digest(), np.uint64))
    if array.dtype.kind == "f":
        return (rng.integers(-1000, 1000, array.shape) / 1024).astype(array.dtype)
    info = np.iinfo(array.dtype)
    return rng.integers(max(info.min, -1000), min(info.max, 1000), array.shape).astype(array.dtype)


def patched(patch, watch):
    """Put the watch in place of clock, chance and noise. To be adjusted to where the door draws its
    noise."""
    patch.setattr(chain, "clock", watch.clock)
    patch.setattr(masking, "secure_key", watch.chance)
    patch.setattr(
        witnesses, "secrets", SimpleNamespace(token_hex=lambda _: watch.chance().hex()[:32])
    )
    patched_door(patch, watch)
    answer, charge, keep = masked.Sender.answer, Ledger.charge, Ledger.keep

    def answered(self, stage, message, words=None):
        if stage == "mask":
            content = hashlib.sha256(seal(dict(words or {}))).hexdigest()
            watch.words.append((watch.who, self.party, self.terms.session, content))
        return answer(self, stage, message, words)

    def charged(self, *given, **more):
        watch.dies("before the charge")
        found = charge(self, *given, **more)
        watch.dies("after the charge")
        return found

    def kept(self, *given, **more):
        watch.dies("before it is kept")
        keep(self, *given, **more)
        watch.dies("after it is kept")

    patch.setattr(masked.Sender, "answer", answered)
    patch.setattr(Ledger, "keep", kept)
    patch.setattr(Ledger, "charge", charged)
    note = Handler.note

    def noted(self, **facts):
        watch.dies("before the answer leaves")
        return note(self, **facts)

    patch.setattr(Handler, "note", noted)


def patched_door(patch, watch):
    """The door's output becomes a function of context and mechanism; what it was about to release
    is watched."""
    roots, current = {}, []
    made, release, train = door.root_key, door.Session.release, door.Session.train

    def root_key(secret, context, *rest):
        found = made(secret, context, *rest)
        roots[found] = context.mark
        return found

    patch.setattr(hospital, "root_key", root_key)

    def released(self, name, mechanism, each):
        current.append((roots[self._root], name.encode() + canonical(mechanism)))
        try:
            return release(self, name, mechanism, each)
        finally:
            current.pop()

    def noised(self, total, key):
        context, mechanism = current[-1]
        watch.drawn.append(
            Drawn(watch.who, context, mechanism, np.array(total), self.limit, key, self.entrywise)
        )
        if isinstance(self, Pick):
            return np.stack([np.arange(self.picks), np.ones(self.picks)]).astype(np.int64)
        return fake(context + mechanism, np.zeros(self.size, np.int64))

    def trained(self, name, job):
        context, mechanism = roots[self._root], name.encode() + canonical(job)
        out = train(self, name, job)
        return {
            part: sealed.then(lambda a, part=part: fake(context + mechanism + part.encode(), a))
            for part, sealed in out.items()
        }

    patch.setattr(door.Session, "release", released)
    patch.setattr(door.Session, "train", trained)
    for kind in MECHANISMS:
        patch.setattr(kind, "noised", noised)


def honest_of(asked):
    """Of how many sites of a sum the noise is counted on."""
    return method_of(asked).honest_sites


__all__ = ["release"]


def vouched(handlers, asked, name, head):
    """What the other sites say, signed, of a site's head: carried by the coordinator."""
    found = {}
    for peer, at in handlers.items():
        header, _ = ask(
            at, "witness", study=called(asked), seed=as_study(asked).seed, heads={name: head}
        )
        if header["ok"] and name in header.get("vouched", {}):
            found[peer] = header["vouched"][name]
    return found
