"""The meeting of one launch in the run's own folder: words are small files, published by link and never written again.

    meet/<launch>/              what concerns the launch: who joined, which checkpoint is offered, which save begins
    data/<epoch>-<save_id>/     what concerns one save, beside its data

A launch has 128 fresh bits in its folder's name: nothing that a dead launch left is ever read. The file system must be
one for all contributors, with exclusive creation, links and lookups that see each other.
"""

import secrets
from typing import Final

from .errors import DuplicateContributor
from .fs import Folder
from .group import MEET, Body, Group
from .layout import Run
from .records import canonical, check_id, check_random, parse

# A vote names the items that were read; a million of them fit.
WORD_BYTES: Final = 64 << 20


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

    def close(self) -> None:
        """Give the descriptors back."""
        for folder in self._folders.values():
            folder.close()

    def publish(self, place: str, name: str, body: Body) -> None:
        """Say a word, by link."""
        if not self._folder(place).publish(name, canonical(body), durable=False):
            raise DuplicateContributor(
                f"{name!r} was said already in {place}: another process speaks as contributor {self.rank} of this "
                "launch, or the launch was used before. Nothing was published by this one; start every contributor "
                "once, with its own rank and a fresh launch."
            )

    def look(self, place: str, name: str) -> Body | None:
        """A word that was said, or None."""
        try:
            return parse(self._folder(place).read(name, WORD_BYTES))
        except FileNotFoundError:
            return None

    def forget(self, place: str, name: str) -> None:
        """Take a word of one's own back."""
        self._folder(place).remove(name)

    def leave(self, place: str) -> None:
        """A save is over: its folder is not looked at again."""
        if place != MEET and (folder := self._folders.pop(place, None)) is not None:
            folder.close()

    def _folder(self, place: str) -> Folder:
        if place not in self._folders:
            check_id(place, "place")
            self._folders[place] = self._data.folder(place)
        return self._folders[place]
