"""The embedded engine: the whole federation in one process, one thread a core, for simulation and
for speed.

Sites are worked on largest first so that threads finish together; answers are returned in the order
of the sites, so neither the number of threads nor their timing can change a number. Kernels release
the GIL; steps too short for that to help are measured both ways and then done one after the other
(`Pace`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from suture.engine import federation
from suture.engine.plan import POOLED, Plan, World
from suture.engine.round import Returned
from suture.errors import StudyError
from suture.site.hospital import Member, SiteMethod, refusal
from suture.study import Study

T = TypeVar("T")


class Pace:
    """Threads, or one after the other? Steps of a millisecond mostly hand Python's lock to and fro:
    then threads cost more than they bring. Both ways are tried twice, and the faster is kept, by
    the last few measurements of each: rounds of one method may ask for different things. Long steps
    always have threads.

    >>> pace = Pace()
    >>> for seconds in (0.002, 0.001, 0.002, 0.001):
    ...     pace.took(pace.threaded(), seconds)
    >>> pace.threaded()
    False
    """

    LONG = 0.005
    TRIES = 2
    KEPT = 3

    def __init__(self) -> None:
        self._last: dict[bool, deque[float]] = {
            True: deque(maxlen=self.KEPT),
            False: deque(maxlen=self.KEPT),
        }

    def threaded(self) -> bool:
        """How to do the next steps."""
        together, alone = self._last[True], self._last[False]
        if not together or min(together) >= self.LONG:
            return True
        if len(alone) < self.TRIES:
            return len(together) <= len(alone)
        return min(together) <= min(alone)

    def took(self, threaded: bool, seconds: float) -> None:
        """Seconds a step, one way or the other."""
        self._last[threaded].append(seconds)


class Embedded:
    """Runs members in a thread pool. Use as a context manager. ``unchecked`` runs also where nobody
    has signed that a site's table is ready, and the result says so; ``signed_as``: see
    `suture.engine.federation.promise`."""

    name = "embedded"
    recorded: ClassVar[dict[str, str]] = {}
    checkpoint_seconds = 1.0
    """Rounds after the last checkpoint are repeated, bit for bit, at little cost."""

    def __init__(
        self, threads: int | None = None, *, unchecked: bool = False, signed_as: str = ""
    ) -> None:
        if threads is not None and threads < 1:
            raise StudyError(f"threads: expected at least 1, found {threads}")
        self._ready: dict[str, Any] = {"ready_needed": not unchecked, "signed_as": signed_as}
        self.threads = threads or os.cpu_count() or 1
        self._paces = {"ask": Pace(), "scores": Pace()}
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="suture-site")

    def __enter__(self) -> Embedded:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def gather(self, study: Study, base: Path, folder: Path | None, seed: int) -> World:
        """The federation of one seed: sizes, plan and promises first, then the rows."""
        here = federation.survey(study, base, seed)
        federation.promise(study, here, folder, **self._ready)
        federation.read_rows(study, here)
        return here

    def members(
        self,
        study: Study,
        here: World,
        plan: Plan,
        seed: int,
    ) -> tuple[dict[str, Member], dict[str, Member]]:
        """Who trains and who is measured; they differ only for pooled training and with folds of
        hospitals."""
        everyone = {**here.hospitals, **here.tested}
        training = (
            {POOLED: federation.pool(here.hospitals)}
            if plan.method.pooled
            else {site: everyone[site] for site in plan.sites or here.hospitals}
        )
        trainers = {}
        for site, hospital in training.items():
            planned = plan.sites.get(site)
            noise = planned.noise_multiplier if planned else None
            trainers[site] = Member(
                hospital.serving(plan.method),
                plan.account,
                noise,
                seed,
                study.digest,
                here.fold or 0,
            )
        readers = trainers
        if plan.method.pooled or here.tested:
            measured = here.tested or here.hospitals
            readers = {
                site: Member(hospital, plan.account, None, seed)
                for site, hospital in measured.items()
            }
        return trainers, readers

    def ask(
        self,
        members: Mapping[str, Member],
        method: SiteMethod,
        messages: Mapping[str, bytes],
        round_: int,
        least: int,
    ) -> Returned:
        """One step at every site that has a message. No site is charged unless enough can pay for
        the round."""
        able = [site for site in messages if members[site].can_pay(method, messages[site], round_)]
        absent = {site: str(refusal(site, round_)) for site in messages if site not in able}
        if absent and len(able) < max(1, least):
            raise refusal(next(iter(absent)), round_)

        def step(site: str) -> bytes:
            return members[site].step(method, messages[site], round_)

        answers = self.map("ask", step, able, [members[site].patients for site in able])
        return Returned(dict(zip(able, answers, strict=True)), absent)

    def summed(self, *_: object) -> None:
        """In one process masks are played through where answers are put together
        (`suture/engine/gather.py`)."""

    def scores(
        self,
        members: Mapping[str, Member],
        method: SiteMethod,
        state: dict[str, NDArray[Any]],
        round_: int,
    ) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Exact labels and risks of every site's test patients (simulation only)."""

        def score(site: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            return members[site].scores(method, state)

        sizes = [members[site].hospital.data.loaded.test_patients for site in members]
        return dict(zip(members, self.map("scores", score, members, sizes), strict=True))

    def figures(self, members: Mapping[str, Member]) -> dict[str, dict[str, float | None]]:
        """None: figures are made from the scores, here."""
        return {}

    def groups(
        self, members: Mapping[str, Member], here: World
    ) -> dict[str, dict[str, NDArray[np.str_]]]:
        """For each site with test patients, the group of each test row. Read for test patients
        only, so not with folds."""
        if here.tested:
            return {}
        return {site: h.data.test_groups for site, h in here.hospitals.items() if h.data.test}

    def map(
        self, work: str, function: Callable[[str], T], names: Iterable[str], sizes: Sequence[int]
    ) -> list[T]:
        """``[function(name) for name in names]``, in threads where that is faster, with the answers
        in the order given."""
        items, pace, begun = list(names), self._paces[work], time.perf_counter()
        if self.threads == 1 or len(items) < 2:
            return [function(item) for item in items]
        threaded = pace.threaded()
        found = (
            self._in_threads(function, items, sizes)
            if threaded
            else [function(item) for item in items]
        )
        pace.took(threaded, (time.perf_counter() - begun) / len(items))
        return found

    def _in_threads(
        self, function: Callable[[str], T], items: Sequence[str], sizes: Sequence[int]
    ) -> list[T]:
        """Largest first, so that threads finish together."""
        order = sorted(range(len(items)), key=lambda i: -sizes[i])
        waiting = {i: self._pool.submit(function, items[i]) for i in order}
        try:
            return [waiting[i].result() for i in range(len(items))]
        finally:
            for future in waiting.values():
                future.cancel()
