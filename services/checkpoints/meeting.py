"""The meeting of one launch in the run's own folder: words are small files, published by link and never written again.

    meet/<launch>/              what concerns the launch: who joined, which checkpoint is offered, which save begins
    data/<epoch>-<save_id>/     what concerns one save, beside its data

A launch has 128 fresh bits in its folder's name: nothing that a dead launch left is ever read. The file system must be
one for all contributors, with exclusive creation, links and lookups that see each other.

Each contributor holds a lock on `here.<rank>` as long as it lives. Who runs under the same kernel sees there that it
has ended, and need not wait for a deadline; of another kernel's locks nothing is concluded. A stopped process keeps it.
"""

import secrets
import time
from pathlib import Path
from typing import Final, TypeVar

from .errors import CommitFailed, DuplicateContributor
from .fs import Folder, Held
from .group import MEET, Body, Group
from .layout import Run
from .records import canonical, check_id, check_random, parse

T = TypeVar("T")

# A vote names the items that were read; a million of them fit.
WORD_BYTES: Final = 64 << 20
# Each boot of a kernel has another; where the file is not, nobody is ever known to have ended.
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_LOOK_SECONDS: Final = 0.05  # a wait polls words much more often than it has to look for the dead


def new_launch() -> str:
    """128 random bits for one start of all contributors; whoever starts them gives each the same."""
    return secrets.token_hex(16)


class Meeting(Group):
    """The group of one launch, on a file system that all contributors share.

    Args:
        run: the run's folders; they stay the caller's to close.
        launch: 32 hexadecimal digits, equal on all ranks and fresh at every start.
        rank: this contributor's number; 0 is the coordinator.
        world: how many there are.
    """

    def __init__(self, run: Run, *, launch: str, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world)
        self._data = run.data
        self._folders = {MEET: run.meet.folder(check_random(launch, "launch"), create=True)}
        self._kernel = _kernel()
        self._kernels: dict[int, str | None] = {}
        self._looked_at: dict[int, float] = {}
        self._here = self._arrive(f"here.{rank}")

    def close(self) -> None:
        """Give the descriptors back."""
        if self._here is not None:
            self._here.close()
        for folder in self._folders.values():
            folder.close()

    def publish(self, place: str, name: str, body: Body) -> None:
        """Say a word, by link."""
        try:
            said = self._folder(place).publish(name, canonical(body), durable=False)
        except OSError as error:
            raise CommitFailed(
                f"{name!r} could not be said in {place}: {error}. Committed checkpoints stand: look at the disk, then "
                "save again."
            ) from error
        self._ours(said, name, place)

    def look(self, place: str, name: str) -> Body | None:
        """A word that was said, or None."""
        try:
            return parse(self._folder(place).read(name, WORD_BYTES))
        except FileNotFoundError:
            return None

    def gone(self, rank: int) -> bool:
        """Whether its lock is free, and was taken under this kernel."""
        now = time.monotonic()
        if self._kernel is None or now < self._looked_at.get(rank, -_LOOK_SECONDS) + _LOOK_SECONDS:
            return False
        self._looked_at[rank] = now
        name = f"here.{rank}"
        if rank not in self._kernels and (word := self.look(MEET, name)) is not None:
            self._kernels[rank] = word.get("kernel")
        return self._kernels.get(rank) == self._kernel and not self._folders[MEET].is_held(name)

    def forget(self, place: str, name: str) -> None:
        """Take a word of one's own back."""
        self._folder(place).remove(name)

    def leave(self, place: str) -> None:
        """A save is over: its folder is not looked at again."""
        if place != MEET and (folder := self._folders.pop(place, None)) is not None:
            folder.close()

    def _arrive(self, name: str) -> Held | None:
        """Say that this contributor is here, and hold that as long as it is."""
        try:
            return self._ours(self._folders[MEET].hold(name, canonical({"kernel": self._kernel})), name, MEET)
        except OSError:  # a file system without locks: the deadlines alone count
            self.publish(MEET, name, {"kernel": None})
            return None

    def _ours(self, published: T | None, name: str, place: str) -> T:
        if not published:
            raise DuplicateContributor(
                f"{name!r} was said already in {place}: another process speaks as contributor {self.rank} of this "
                "launch, or the launch was used before. Nothing was published by this one; start every contributor "
                "once, with its own rank and a fresh launch."
            )
        return published

    def _folder(self, place: str) -> Folder:
        if place not in self._folders:
            check_id(place, "place")
            self._folders[place] = self._data.folder(place)
        return self._folders[place]


def _kernel() -> str | None:
    """Which boot of which kernel this process runs under; None where it does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return None
