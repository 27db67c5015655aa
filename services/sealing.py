"""Sealing in the background, beside whatever else a process does."""

import asyncio
import logging

import sqlalchemy as sa

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
    failing = False
    while True:
        try:
            await asyncio.to_thread(seal, engine, sealed_by=sealed_by)
            failing = False
        except Exception as error:  # noqa: BLE001 - no failure to seal is worth an effect
            if not failing:
                _LOG.warning("The journal is not sealed (%s). No entry is lost; sealing is tried again.", error)
            failing = True
        await asyncio.sleep(every_seconds)
