"""What the commands open that look at the journal."""

from collections.abc import Iterator
from contextlib import contextmanager

import click
import sqlalchemy as sa

from services.database import check_schema, open_engine
from services.effects.errors import InvalidEffect
from services.effects.keys import PROVIDER_KEY, derive_key
from services.effects.settle import SEND_WINDOW
from services.journal.reads import JournalReads
from services.settings import JournalSettings, OriginSettings


@contextmanager
def open_journal_engine(settings: JournalSettings) -> Iterator[sa.Engine]:
    """An engine on COUNTERFOIL_JOURNAL_DATABASE_URL, at this build's schema.

    Raises:
        DatabaseError: it cannot be used.
    """
    engine = open_engine(settings.journal_database_url.get_secret_value())
    try:
        check_schema("journal", engine)
        yield engine
    finally:
        engine.dispose()


@contextmanager
def open_journal(settings: JournalSettings) -> Iterator[JournalReads]:
    """The journal of COUNTERFOIL_JOURNAL_DATABASE_URL, at this build's schema.

    Raises:
        DatabaseError: it cannot be used.
    """
    with open_journal_engine(settings) as engine:
        yield JournalReads(engine, send_window=SEND_WINDOW)


def check_effect(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Refuse what is neither KEY nor SCOPE/NAME."""
    if value is None or "/" in value.strip("/") or PROVIDER_KEY.fullmatch(value):
        return value
    raise click.BadParameter(f"{value!r} is neither a key (cf1-...-g1) nor SCOPE/NAME.")


def find_key(journal: JournalReads, effect: str) -> str:
    """The key of KEY or SCOPE/NAME; of a name, that of the highest generation that was decided.

    Raises:
        SettingsError: a SCOPE/NAME, and COUNTERFOIL_ORIGIN is not set.
        UsageError: no effect can be called that.
    """
    scope, slash, name = effect.rpartition("/")
    if not slash:
        return effect
    origin = OriginSettings.read().origin
    decided = [each.generation for each in journal.decisions(origin=origin, scope=scope) if each.name == name]
    try:
        return derive_key(origin, scope, name, max(decided, default=1))
    except InvalidEffect as error:
        raise click.UsageError(f"{effect!r} names no effect: {error}") from None
