"""A database that nothing has been done to, of each kind."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import open_engine
from tests.postgres import Databases


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Its URL; on SQLite not even the file is there yet."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.empty()


def tables(url: str) -> set[str]:
    """The names of a database's tables."""
    engine = open_engine(url)
    names = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return names
