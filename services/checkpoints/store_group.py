"""The meeting of one launch over a key-value store, such as those of torch.distributed: it needs no shared folder.

    Session.open(..., launch=launch, group=lambda run: StoreGroup(store, launch=launch, rank=rank, world=world))

The data still lies where all contributors reach it. `compare_set` creates a key only when it is absent: that is what
makes a word be said once. It never waits, so that a background writer holds up no one who shares the connection.
"""

import secrets
from typing import Any, Final, Protocol

from .errors import DuplicateContributor
from .group import Body, Group
from .records import canonical, check_random, parse

_NONCE_LENGTH: Final = 32
# No word begins so. Asked whether a key has this, a store answers with what it has, and with this where it has none.
_NOTHING: Final = "-"


class Store(Protocol):
    """What is used of torch.distributed.Store."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key to `desired` when it has `expected`, or is absent and that is empty; what it has then."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a key."""


class StoreGroup(Group):
    """The group of one launch, by words in a store.

    Args:
        store: a TCPStore, FileStore or HashStore, or one with a prefix; it stays the caller's.
        launch: 32 hexadecimal digits, equal on all ranks and fresh at every start: `torch.shared_launch()`.
        rank: this contributor's number; 0 is the coordinator.
        world: how many there are.
    """

    def __init__(self, store: Store | Any, *, launch: str, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world)
        self._store = store
        self._launch = check_random(launch, "launch")

    def publish(self, place: str, name: str, body: Body) -> None:
        """Say a word; equal words of two speakers differ in their first 128 bits."""
        word = secrets.token_hex(_NONCE_LENGTH // 2) + canonical(body).decode()
        if self._store.compare_set(self._key(place, name), "", word).decode() != word:
            raise DuplicateContributor(
                f"{name!r} was said already in {place}: another process speaks as contributor {self.rank} of this "
                "launch. Nothing was published by this one; start every contributor once, with its own rank."
            )

    def look(self, place: str, name: str) -> Body | None:
        """A word that was said, or None."""
        word = self._store.compare_set(self._key(place, name), _NOTHING, _NOTHING)
        return None if word in {b"", _NOTHING.encode()} else parse(word[_NONCE_LENGTH:])

    def forget(self, place: str, name: str) -> None:
        """Take a word of one's own back."""
        self._store.delete_key(self._key(place, name))

    def close(self) -> None:
        """The store is the caller's."""

    def leave(self, place: str) -> None:
        """Words stay: others may not have read them yet. A save leaves a few hundred bytes."""

    def _key(self, place: str, name: str) -> str:
        return f"counterfoil/{self._launch}/{place}/{name}"
