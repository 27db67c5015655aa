"""The profile of a worker."""

import threading
from pathlib import Path

from benchmarks.profile import written_to


def _in_the_main_thread() -> int:
    return sum(range(1000))


def _in_a_thread() -> int:
    return sum(range(1000))


def test_a_profile_holds_what_every_thread_did(tmp_path: Path) -> None:
    """The journal writes in threads: a profile of the main thread alone would not show it."""
    file = tmp_path / "worker.prof"
    with written_to(file):
        _in_the_main_thread()
        thread = threading.Thread(target=_in_a_thread)
        thread.start()
        thread.join()
    text = file.with_name("worker.prof.txt").read_text()
    assert file.is_file()
    assert "_in_the_main_thread" in text
    assert "_in_a_thread" in text
