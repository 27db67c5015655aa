"""What the engine needs of a provider: the adapter's side of the keyed contract."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from services.effects.records import Answer, Attempt, EffectRow


class Provider(Protocol):
    """An outside system behind keyed calls. No method raises for what the network or the provider does."""

    async def send(self, row: EffectRow, attempt: Attempt) -> Answer:
        """Send the journaled bytes once, behind the send gate."""

    async def look_up(self, key: str) -> Answer:
        """Ask for the key's receipt."""

    async def look_up_many(self, keys: Sequence[str]) -> Mapping[str, Answer]:
        """Ask for the receipts of many keys in as few exchanges as there can be; every key has its answer."""

    async def void(self, key: str) -> Answer:
        """Close the key, and say what owns it."""
