"""A database with everything in it, without what keeps it: for one change after another."""

# ruff: noqa: S608 - the names are those of our own tables

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.tables import METADATA
from services.inventory.verification.findings import Rule, Violation
from services.inventory.verification.run import verify
from tests.services.inventory.verification.workload import SIGNING_KEY, fill


@pytest.fixture(scope="session")
def filled(_new_database: Callable[[str, Path], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The URL of the dialect's database with the workload; nobody may write to it."""
    made: dict[str, str] = {}

    def url(dialect: str) -> str:
        if dialect not in made:
            made[dialect] = _new_database(dialect, tmp_path_factory.mktemp("filled"))
            fill(made[dialect])
        return made[dialect]

    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """The workload's tables without a constraint or a trigger, and beside each a copy to put it back from."""

    engine: sa.Engine

    def rows(self, table: sa.Table) -> list[Mapping[str, Any]]:
        """What is stored, in the order of its primary key."""
        statement = sa.text(f"SELECT * FROM {table.name} ORDER BY {', '.join(c.name for c in table.primary_key)}")
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    @contextmanager
    def changed(self, table: sa.Table, statement: str, **values: Any) -> Iterator[None]:
        """The table after a statement; then as it was."""
        with writing(self.engine) as connection:
            if values:
                connection.execute(sa.text(statement), values)
            else:
                connection.exec_driver_sql(statement)
        try:
            yield
        finally:
            with writing(self.engine) as connection:
                connection.execute(sa.text(f"DELETE FROM {table.name}"))
                connection.execute(sa.text(f"INSERT INTO {table.name} SELECT * FROM {table.name}_kept"))

    def found(self) -> Violation:
        """The first violation; where there is no other, that nothing keeps these tables."""
        violation = verify(self.engine, (SIGNING_KEY,)).violation
        assert violation is not None
        return violation

    def rule(self, table: sa.Table, statement: str, **values: Any) -> Rule:
        """The rule that a statement breaks."""
        with self.changed(table, statement, **values):
            return self.found().rule


@pytest.fixture(scope="session")
def _bare(
    _new_database: Callable[[str, Path], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Bare]]:
    made: dict[str, Bare] = {}
    with ExitStack() as stack:

        def bare(dialect: str) -> Bare:
            if dialect not in made:
                url = _new_database(dialect, tmp_path_factory.mktemp("bare"))
                fill(url)
                made[dialect] = Bare(engine=open_engine(url))
                stack.callback(made[dialect].engine.dispose)
                _strip(made[dialect].engine)
            return made[dialect]

        yield bare


@pytest.fixture
def bare(dialect: str, _bare: Callable[[str], Bare]) -> Bare:
    """Shared by the tests of a dialect: each puts back what it changes."""
    return _bare(dialect)


def _strip(engine: sa.Engine) -> None:
    cascade = "CASCADE" if engine.dialect.name == "postgresql" else ""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
        connection.commit()
        for table in METADATA.sorted_tables:
            connection.exec_driver_sql(f"CREATE TABLE {table.name}_kept AS SELECT * FROM {table.name}")
            connection.exec_driver_sql(f"CREATE TABLE {table.name}_bare AS SELECT * FROM {table.name}")
        for table in reversed(METADATA.sorted_tables):
            connection.exec_driver_sql(f"DROP TABLE {table.name} {cascade}")
            connection.exec_driver_sql(f"ALTER TABLE {table.name}_bare RENAME TO {table.name}")
        connection.commit()
