"""Work that falls into independent jobs, a core to each: Python's lock lets threads do only one thing at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

J = TypeVar("J")
R = TypeVar("R")


def spread(work: Callable[[J], R], jobs: Sequence[J], workers: int | None = None) -> Iterator[tuple[int, R]]:
    """The number of each job and what it gave, as they are finished; ``workers`` at once (default: one a core).

    Jobs begin in the order given, so the long ones belong first. When the loop is left, by an error or by an interruption,
    no further job begins.

    >>> sorted(spread(abs, [-3, 4], workers=1))
    [(0, 3), (1, 4)]
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        yield from ((i, work(job)) for i, job in enumerate(jobs))
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        waiting = {pool.submit(work, job): i for i, job in enumerate(jobs)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
