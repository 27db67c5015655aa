"""The meeting of one launch in the run's own folder: words are small files, published by link and never written again.

    meet/<launch>/              what concerns the launch: who joined, which checkpoint is offered, which save begins
    data/<epoch>-<save_id>/     what concerns one save, beside its data

A launch has 128 fresh bits in its folder's name: nothing that a dead launch left is ever read. The file system must be
one for all contributors, with exclusive creation, links and lookups that see each other.
"""

import secrets
from pathlib import Path
from typing import Final

from .errors import DuplicateContributor
from .fs import Folder, open_root
from .group import MEET, Body, Group
from .records import canonical, check_id, check_random, parse

# A vote names the items that were read; a million of them fit.
WORD_BYTES: Final = 64 << 20


def new_launch() -> str:
    """128 random bits for one start of all contributors; whoever starts them gives each the same."""
    return secrets.token_hex(16)


class Meeting(Group):
    """The group of one launch, on a file system that all contributors share.

    Args:
        root: the store's root folder.
        run: the run's id.
        launch: 32 hexadecimal digits, equal on all ranks and fresh at every start.
        rank: this contributor's number; 0 is the coordinator.
        world: how many there are.
    """

    def __init__(self, root: str | Path, *, run: str, launch: str, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world)
        check_random(launch, "launch")
        check_id(run, "run")
        with open_root(root, create=True) as top, top.folder("runs", create=True) as runs:
            self._run = runs.folder(run, create=True)
        with self._run.folder("meet", create=True) as meet:
            self._folders = {MEET: meet.folder(launch, create=True)}

    def close(self) -> None:
        """Give the descriptors back."""
        for folder in (*self._folders.values(), self._run):
            folder.close()

    def publish(self, place: str, name: str, body: Body) -> None:
        """Say a word, by link."""
        if not self._folder(place).publish(name, canonical(body), durable=False):
            raise DuplicateContributor(
                f"{name!r} was said already in {place}: another process speaks as contributor {self.rank} of this "
                "launch. Nothing was published by this one; start every contributor once, with its own rank."
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
            with self._run.folder("data") as data:
                self._folders[place] = data.folder(place)
        return self._folders[place]


