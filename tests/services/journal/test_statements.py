"""The statements that are built once say what the same ones built anew would say."""

import pytest
import sqlalchemy as sa

from services.database import reading
from services.effects.keys import release_name
from services.journal import statements
from services.journal.store import Journal
from services.journal.tables import EFFECTS
from tests.services.effects.halves import make_intent, make_mark, make_release

INTENT = make_intent()


@pytest.fixture
def names(journal: Journal) -> dict[str, str]:
    """By key, the names of an effect in two generations, of its release, and of others in its scope and elsewhere."""
    intents = [
        INTENT,
        make_intent(generation=2),
        make_release(),
        make_intent(name="other"),
        make_intent(scope="INC-other"),
    ]
    for number, intent in enumerate(intents):
        journal.begin(intent, make_mark(f"attempt-{number}"))
    return {intent.key: intent.name for intent in intents}


def test_related_is_every_generation_of_the_name_and_of_its_release(engine: sa.Engine, names: dict[str, str]) -> None:
    """In its own scope."""
    of = {"of_origin": INTENT.origin, "of_scope": INTENT.scope, "of_name": INTENT.name}
    with reading(engine) as connection:
        found = connection.execute(
            statements.EFFECTS_RELATED, of | {"of_release": release_name(INTENT.name, 1)}
        ).mappings()
        assert sorted(row["key"] for row in found) == sorted(list(names)[:3])


def test_the_bars_of_a_name_are_its_highest_generation_and_any_alarm(engine: sa.Engine, names: dict[str, str]) -> None:
    """An alarm on one generation bars them all; one on another name bars none of these."""
    of = {"of_origin": INTENT.origin, "of_scope": INTENT.scope, "of_name": INTENT.name}
    keys = list(names)
    for key, expected in ((None, False), (keys[3], False), (keys[4], False), (keys[1], True)):
        with engine.begin() as connection:
            if key is not None:
                connection.execute(sa.update(EFFECTS).where(EFFECTS.c.key == key).values(alarmed=True))
            assert tuple(connection.execute(statements.BARS, of).one()) == (2, expected)
