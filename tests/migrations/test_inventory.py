"""The inventory's migrations: up, the same as the tables, down, up again."""

from alembic import command

from services.database import _alembic, migrate, open_engine
from tests.migrations.conftest import tables


def test_the_schema_goes_up_matches_the_tables_goes_down_and_up_again(url: str) -> None:
    """What the migration builds is what the tables say, and nothing stays behind on the way down."""
    assert migrate("inventory", url) == "inventory_0002"
    engine = open_engine(url)
    config = _alembic("inventory")
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.check(config)
    engine.dispose()
    assert migrate("inventory", url, "base") == "base"
    assert tables(url) == {"alembic_version"}
    assert migrate("inventory", url) == "inventory_0002"
