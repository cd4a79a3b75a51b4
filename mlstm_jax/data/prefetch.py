"""Prefetching: another thread computes the next items while one is used."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(
    make: Callable[[int], Item], steps: range, depth: int = 2
) -> Generator[Item, None, None]:
    """Yield ``make(step)`` for each step, computed up to `depth` steps ahead in one thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch") as pool:
        waiting = deque(pool.submit(make, step) for step in steps[:depth])
        for step in range(steps.start, steps.stop):
            item = waiting.popleft().result()
            if step + depth < steps.stop:
                waiting.append(pool.submit(make, step + depth))
            yield item
