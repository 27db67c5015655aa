"""Where a worker's time goes, by function: the standard library's profiler in every thread.

The figures of a run with it are of no use but this one: it makes Python several times slower.
"""

import cProfile
import pstats
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LINES = 60


@contextmanager
def written_to(file: Path) -> Iterator[None]:
    """Profile this thread and those that start inside the block; the result goes to FILE, and as text to FILE.txt."""
    lock = threading.Lock()
    profiles: list[cProfile.Profile] = []

    def begin(*_event: Any) -> None:
        # Called by a new thread's first call; the thread is then profiled by the profiler itself.
        one = cProfile.Profile()
        with lock:
            profiles.append(one)
        one.enable()

    threading.setprofile(begin)
    begin()
    try:
        yield
    finally:
        threading.setprofile(None)
        profiles[0].disable()
        _write(profiles, file)


def _write(profiles: list[cProfile.Profile], file: Path) -> None:
    with file.with_name(f"{file.name}.txt").open("w") as text:
        stats = pstats.Stats(profiles[0], stream=text)
        for one in profiles[1:]:
            stats.add(one)
        stats.dump_stats(file)
        stats.strip_dirs().sort_stats("tottime").print_stats(_LINES)
