"""Events in normal form: what was released, how many times, and its exact JSON.

A `dp_accounting.DpEvent` says what a mechanism did. Suture accepts a closed list of them, because
an event of unknown cost must stop a release, not pass as free: Gaussian, Laplace, Poisson-sampled
Gaussian, rho-zCDP (votes: a bounded-range pick of eps0 is eps0^2/8-zCDP, Cesar & Rogers 2021),
their compositions, NoOp and NonPrivate. Everything else raises `UnknownEvent`. Adaptive composition
does not depend on order (Dwork & Roth 2014, Section 3.5), so an event is reduced to counted
`Step`s, and two events are the same when their normal forms are.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from pydantic import JsonValue

from suture.errors import UnknownEvent
from suture.privacy.canonical import json_text

GAUSSIAN, LAPLACE, ZCDP, NON_PRIVATE = "gaussian", "laplace", "zcdp", "non_private"


class Step(NamedTuple):
    """One mechanism, once: its noise multiplier and Poisson sampling rate (1: everyone).

    A zCDP step is known by its cost, not by its noise: there ``noise`` holds rho.
    """

    kind: str
    noise: float
    rate: float


_EVENTS: dict[str, tuple[Callable[..., DpEvent], dict[str, str]]] = {
    "no_op": (dp_event.NoOpDpEvent, {}),
    NON_PRIVATE: (dp_event.NonPrivateDpEvent, {}),
    GAUSSIAN: (dp_event.GaussianDpEvent, {"noise": "noise_multiplier"}),
    LAPLACE: (dp_event.LaplaceDpEvent, {"noise": "noise_multiplier"}),
    ZCDP: (dp_event.ZCDpEvent, {"rho": "rho"}),
    "poisson_sampled": (
        dp_event.PoissonSampledDpEvent,
        {"rate": "sampling_probability", "of": "event"},
    ),
    "self_composed": (dp_event.SelfComposedDpEvent, {"count": "count", "of": "event"}),
    "composed": (dp_event.ComposedDpEvent, {"of": "events"}),
}
"""The closed list: an event's name in JSON, its class, and its fields in JSON by the class's own."""

NormalForm = tuple[tuple[Step, int], ...]
"""Distinct steps in a fixed order, each with its count. Empty: nothing was released."""


def normal_form(event: DpEvent) -> NormalForm:
    """The counted steps of an event; `UnknownEvent` for anything that the accountants do not know.

    >>> from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> step = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
    >>> normal_form(ComposedDpEvent([step, SelfComposedDpEvent(step, 4)]))
    ((Step(kind='gaussian', noise=2.0, rate=0.1), 5),)
    """
    counts: dict[Step, int] = {}
    _count(event, 1, counts)
    return tuple(sorted((step, count) for step, count in counts.items() if count))


def add(first: NormalForm, second: NormalForm) -> NormalForm:
    """The composition of two normal forms."""
    counts = dict(first)
    for step, count in second:
        counts[step] = counts.get(step, 0) + count
    return tuple(sorted(counts.items()))


def times(form: NormalForm, count: int) -> NormalForm:
    """The same form, repeated ``count`` times."""
    return tuple((step, taken * count) for step, taken in form) if count else ()


def amounts(form: NormalForm) -> dict[Step, float]:
    """What a form takes of a charge or of a plan, by kind: the count of every step, but the sum of
    1/noise^2 for Gaussian releases of everyone, and the sum of rho for zCDP.

    A Gaussian release is as good as k releases of the same question whose 1/noise^2 adds up to its
    own, so whoever may have the k may have it; for zCDP rho bounds every Renyi divergence likewise.

    >>> list(amounts(((Step(GAUSSIAN, 2.0, 0.1), 5), (Step(GAUSSIAN, 2.0, 1.0), 3))).values())
    [5.0, 0.75]
    >>> amounts(((Step(ZCDP, 0.1, 1.0), 2), (Step(ZCDP, 0.3, 1.0), 1)))
    {Step(kind='zcdp', noise=1.0, rate=1.0): 0.5}
    """
    found: dict[Step, float] = {}
    for step, count in form:
        amount, key = float(count), step
        if step.kind == ZCDP:
            amount, key = count * step.noise, Step(ZCDP, 1.0, 1.0)
        elif step.kind == GAUSSIAN and step.rate == 1:
            amount, key = count / step.noise**2, Step(GAUSSIAN, 1.0, 1.0)
        found[key] = found.get(key, 0.0) + amount
    return found


def of_amounts(found: Mapping[Step, float]) -> DpEvent:
    """An event that takes these amounts."""
    counts: dict[Step, int] = {}
    for step, amount in found.items():
        if step.kind == ZCDP:
            counts[Step(ZCDP, amount, 1.0)] = 1
        elif step.kind == GAUSSIAN and step.rate == 1:
            counts[Step(GAUSSIAN, amount**-0.5, 1.0)] = 1
        else:
            counts[step] = round(amount)
    return as_event(tuple(sorted(counts.items())))


ROUNDING = 1e-9
"""The same amount, added up in another order, may differ by this much of itself."""


def compose(events: Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """One event for several, each with its count; equal steps are merged.

    >>> from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    >>> compose([(SelfComposedDpEvent(GaussianDpEvent(2.0), 3), 2), (GaussianDpEvent(2.0), 1)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=7)
    """
    total: NormalForm = ()
    for event, count in events:
        total = add(total, times(normal_form(event), _whole(count, "a count", event)))
    return as_event(total)


def as_event(form: NormalForm) -> DpEvent:
    """The event of a normal form."""
    parts = []
    for step, count in form:
        kind = _EVENTS[step.kind][0]
        part: DpEvent = kind() if step.kind == NON_PRIVATE else kind(step.noise)
        if step.rate < 1:
            part = dp_event.PoissonSampledDpEvent(step.rate, part)
        parts.append(part if count == 1 else dp_event.SelfComposedDpEvent(part, count))
    if not parts:
        return dp_event.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def event_to_json(event: DpEvent) -> dict[str, JsonValue]:
    """The event as JSON, field by field; `UnknownEvent` for a type outside the closed list.

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    >>> event_to_json(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)))
    {'event': 'poisson_sampled', 'rate': 0.1, 'of': {'event': 'gaussian', 'noise': 2.0}}
    """
    normal_form(event)
    return _to_json(event)


def form_and_text(event: DpEvent) -> tuple[NormalForm, str]:
    """The event's normal form and its canonical JSON text."""
    return normal_form(event), json_text(_to_json(event))


def event_to_text(event: DpEvent) -> str:
    """The canonical JSON text of an event; floats read back bit for bit."""
    return form_and_text(event)[1]


def event_from_json(value: object) -> DpEvent:
    """The event that `event_to_json` wrote; `UnknownEvent` for anything else."""
    event = _from_json(value)
    normal_form(event)
    return event


def _count(event: DpEvent, times_taken: int, counts: dict[Step, int]) -> None:
    # `type() is`, not isinstance: a subclass may mean something else.
    kind = type(event)
    if kind is dp_event.SelfComposedDpEvent:
        _count(event.event, times_taken * _whole(event.count, "count", event), counts)
    elif kind is dp_event.ComposedDpEvent:
        for part in event.events:
            _count(part, times_taken, counts)
    else:
        step = _step(event)
        if step is not None:
            counts[step] = counts.get(step, 0) + times_taken


def _step(event: DpEvent) -> Step | None:
    """The step of one simple event, or None when it releases nothing about anyone."""
    kind = type(event)
    if kind is dp_event.NoOpDpEvent:
        return None
    if kind is dp_event.NonPrivateDpEvent:
        return Step(NON_PRIVATE, 0.0, 1.0)
    if kind is dp_event.GaussianDpEvent or kind is dp_event.LaplaceDpEvent:
        name = GAUSSIAN if kind is dp_event.GaussianDpEvent else LAPLACE
        return _noisy(name, event.noise_multiplier, 1.0, event)
    if kind is dp_event.ZCDpEvent:
        rho = _number(event.rho, "rho", event)
        if rho < 0 or _number(event.xi, "xi", event) != 0:
            raise UnknownEvent(f"expected rho >= 0 and xi = 0 (plain rho-zCDP), found {event!r}")
        return Step(ZCDP, rho, 1.0) if rho > 0 else None
    if kind is dp_event.PoissonSampledDpEvent and type(event.event) is dp_event.GaussianDpEvent:
        rate = _number(event.sampling_probability, "the sampling rate", event)
        if not 0 <= rate <= 1:
            raise UnknownEvent(
                f"expected a sampling rate from 0 to 1, found {rate} in {event!r}: nothing was "
                "released"
            )
        step = _noisy(GAUSSIAN, event.event.noise_multiplier, rate, event)
        return step if rate > 0 else None
    raise UnknownEvent(
        "the accountants know Gaussian, Laplace, Poisson-sampled Gaussian, zCDP, their "
        f"compositions, NoOp and NonPrivate; the cost of {event!r} is unknown: nothing was released"
    )


def _noisy(kind: str, noise: object, rate: float, event: DpEvent) -> Step:
    multiplier = _number(noise, "the noise multiplier", event)
    if multiplier < 0:
        raise UnknownEvent(
            f"expected a noise multiplier of at least 0, found {multiplier} in {event!r}"
        )
    return Step(kind, multiplier, rate) if multiplier > 0 else Step(NON_PRIVATE, 0.0, 1.0)


def _number(value: object, what: str, event: DpEvent) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UnknownEvent(f"expected {what} to be a finite number, found {value!r} in {event!r}")
    return float(value)


def _whole(value: object, what: str, event: DpEvent) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise UnknownEvent(
            f"expected {what} to be a whole number of at least 0, found {value!r} for {event!r}"
        )
    return int(value)


def _to_json(event: DpEvent) -> dict[str, JsonValue]:
    name = next(name for name, (kind, _) in _EVENTS.items() if kind is type(event))
    found: dict[str, JsonValue] = {"event": name}
    for field, attribute in _EVENTS[name][1].items():
        value = attrgetter(attribute)(event)
        if field == "of":
            many = name == "composed"
            found[field] = [_to_json(part) for part in value] if many else _to_json(value)
        else:
            found[field] = int(value) if field == "count" else float(value)
    return found


def _from_json(value: object) -> DpEvent:
    name = value.get("event") if isinstance(value, Mapping) else None
    kind, fields = _EVENTS.get(name, (None, {})) if isinstance(name, str) else (None, {})
    if not isinstance(value, Mapping) or kind is None or set(value) != {"event", *fields}:
        names = ", ".join(_EVENTS)
        raise UnknownEvent(f"expected an event written by Suture (one of {names}), found {value!r}")
    found = {attribute: value[field] for field, attribute in fields.items()}
    if name == "composed":
        if not isinstance(value["of"], list):
            raise UnknownEvent(f"expected a list of events, found {value['of']!r}")
        found["events"] = [_from_json(part) for part in value["of"]]
    elif "of" in fields:
        found["event"] = _from_json(value["of"])
    return kind(**found)
