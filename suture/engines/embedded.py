"""The embedded engine: the whole federation in one process, one thread a core, for simulation and for speed.

Sites are worked on largest first so that threads finish together; answers are returned in the order of the sites, so
neither the number of threads nor their timing can change a number. Kernels release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from suture.errors import StudyError
from suture.site.hospital import Member, SiteMethod, refusal

T = TypeVar("T")


class Embedded:
    """Runs members in a thread pool. Use as a context manager."""

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise StudyError(f"threads: expected at least 1, found {threads}")
        self.threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="suture-site")

    def __enter__(self) -> Embedded:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def ask(
        self, members: Mapping[str, Member], method: SiteMethod, messages: Mapping[str, bytes], round_: int
    ) -> dict[str, bytes]:
        """One step at every site that has a message. No site is charged unless all can pay for the round."""
        for site, message in messages.items():
            if not members[site].can_pay(method, message, round_):
                raise refusal(site, round_)

        def step(site: str) -> bytes:
            return members[site].step(method, messages[site], round_)

        answers = self.map(step, messages, [members[site].hospital.patients for site in messages])
        return dict(zip(messages, answers, strict=True))

    def scores(
        self, members: Mapping[str, Member], method: SiteMethod, state: dict[str, NDArray[Any]]
    ) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Exact labels and risks of every site's test patients (simulation only)."""

        def score(site: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            return members[site].scores(method, state)

        sizes = [members[site].hospital.data.loaded.test_patients for site in members]
        return dict(zip(members, self.map(score, members, sizes), strict=True))

    def map(self, function: Callable[[str], T], names: Iterable[str], sizes: Sequence[int]) -> list[T]:
        """``[function(name) for name in names]``, in threads, largest first, with the answers in the order given."""
        items = list(names)
        if self.threads == 1 or len(items) == 1:
            return [function(item) for item in items]
        order = sorted(range(len(items)), key=lambda i: -sizes[i])
        waiting = {i: self._pool.submit(function, items[i]) for i in order}
        try:
            return [waiting[i].result() for i in range(len(items))]
        finally:
            for future in waiting.values():
                future.cancel()
