"""Sealing in the background, beside whatever else a process does."""

import asyncio
import logging

import sqlalchemy as sa

from services.background import again_and_again
from services.journal.seals import seal

# Whoever wants to change the journal unseen has to be faster than this.
SEAL_EVERY_SECONDS = 3.0

_LOG = logging.getLogger(__name__)


async def keep_sealing(engine: sa.Engine, *, sealed_by: str, every_seconds: float = SEAL_EVERY_SECONDS) -> None:
    """Seal the journal again and again, until it is cancelled. What goes wrong is said once and stops nothing.

    Args:
        engine: of the journal.
        sealed_by: who: stands in every seal.
        every_seconds: between two seals.
    """
    await again_and_again(
        lambda: asyncio.to_thread(seal, engine, sealed_by=sealed_by),
        every_seconds=every_seconds,
        say=lambda error: _LOG.warning(
            "The journal is not sealed (%s). No entry is lost; sealing is tried again.", error
        ),
    )
