"""`counterfoil migrate`: which database, and what is said when it cannot be used."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from psycopg import sql

from services.database import open_engine
from tests.postgres import Databases
from tests.services.cli.conftest import Run
from tests.services.journal.lives import live

STORES = ["journal", "inventory"]


@pytest.mark.parametrize("store", STORES)
def test_without_its_url_a_store_is_not_migrated(counterfoil: Run, store: str) -> None:
    """The variable is named; the other store's URL is not taken instead."""
    other = "COUNTERFOIL_INVENTORY_DATABASE_URL" if store == "journal" else "COUNTERFOIL_JOURNAL_DATABASE_URL"
    done = counterfoil("migrate", store, **{other: "sqlite:////nonexistent/other.db"})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"COUNTERFOIL_{store.upper()}_DATABASE_URL is not set" in done.stderr


@pytest.mark.parametrize("store", STORES)
def test_a_database_that_cannot_be_opened_is_3_in_json_too(counterfoil: Run, store: str, tmp_path: Path) -> None:
    """Which database, that nothing was written."""
    url = f"sqlite:///{tmp_path}/missing/store.db"
    done = counterfoil("migrate", store, "--json", **{f"COUNTERFOIL_{store.upper()}_DATABASE_URL": url})
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["exit_code"], error["kind"]) == (3, 3, "unreachable")
    assert url in error["message"]
    assert "Nothing was written" in error["message"]


@pytest.mark.parametrize("url", ["hunter2", "mysql://a:hunter2@h/x", "sqlite://", "sqlite:///:memory:"])
def test_a_url_that_is_not_usable_is_2_and_not_shown(counterfoil: Run, url: str) -> None:
    """The sentence says what to write; a password in it stays hidden."""
    done = counterfoil("migrate", "journal", COUNTERFOIL_JOURNAL_DATABASE_URL=url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Write sqlite:///FILE" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("store", STORES)
def test_a_revision_that_does_not_exist_is_2(counterfoil: Run, store: str, tmp_path: Path) -> None:
    """Nothing was changed, and it is said."""
    variable = {f"COUNTERFOIL_{store.upper()}_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    done = counterfoil("migrate", store, f"{store}_9999", "--json", **variable)
    assert done.returncode == 2
    assert "Nothing was changed" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.parametrize("store", STORES)
def test_a_migration_may_be_repeated_and_says_the_revision(counterfoil: Run, store: str, tmp_path: Path) -> None:
    """The second time nothing happens, and the answer is the same."""
    variable = {f"COUNTERFOIL_{store.upper()}_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    first = counterfoil("migrate", store, "--json", **variable)
    again = counterfoil("migrate", store, "--json", **variable)
    assert (first.returncode, again.returncode) == (0, 0)
    assert json.loads(first.stdout) == json.loads(again.stdout)
    assert json.loads(first.stdout)["revision"].startswith(f"{store}_")


@pytest.fixture
def role(postgres: Databases) -> Iterator[str]:
    """A role that exists and may do nothing yet; its grants go with the databases of the test."""
    name = f"counterfoil_test_{os.getpid()}_migrate"
    with postgres.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize("store", STORES)
def test_a_migration_grants_a_process_what_it_needs(
    counterfoil: Run, store: str, role: str, postgres: Databases
) -> None:
    """In one command, which may be repeated and says what was granted."""
    url = postgres.empty()
    variable = {f"COUNTERFOIL_{store.upper()}_DATABASE_URL": url}
    first = counterfoil("migrate", store, "--grant-to", role, "--json", **variable)
    again = counterfoil("migrate", store, "--grant-to", role, "--json", **variable)
    assert (first.returncode, again.returncode) == (0, 0)
    document = json.loads(first.stdout)
    assert document == json.loads(again.stdout)
    assert document["granted_to"] == role
    assert document["granted"]["alembic_version"] == ["SELECT"]
    with postgres.connect(url) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        connection.execute("SELECT version_num FROM alembic_version")
    postgres.drop(url)


def test_a_role_that_may_not_and_a_standby_are_2_and_no_defect(
    counterfoil: Run, role: str, postgres: Databases
) -> None:
    """A grant that was forgotten, a migration by a process's role, a server that takes no writes: a person mends it."""
    url = postgres.migrated("journal")
    as_role = sa.make_url(url).set(username=role).render_as_string(hide_password=False)
    read_only = f"{url}?options=-c%20default_transaction_read_only%3Don"
    engine = open_engine(url)
    live(engine, "INC-1")
    engine.dispose()
    for command, where, why in (
        (("journal", "watermark"), as_role, "permission denied"),
        (("migrate", "journal", "base"), as_role, "permission denied"),
        (("journal", "seal"), read_only, "read-only"),
    ):
        done = counterfoil(*command, "--json", COUNTERFOIL_JOURNAL_DATABASE_URL=where)
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["kind"]) == (2, "wrong-use")
        assert why in error["message"]


@pytest.mark.parametrize("store", STORES)
def test_a_grant_that_cannot_be_is_refused_before_the_migration(counterfoil: Run, store: str, tmp_path: Path) -> None:
    """SQLite has no roles, and an older revision no grants of this build's."""
    variable = {f"COUNTERFOIL_{store.upper()}_DATABASE_URL": f"sqlite:///{tmp_path}/store.db"}
    done = counterfoil("migrate", store, "--grant-to", "worker", "--json", **variable)
    assert done.returncode == 2
    assert "has no roles" in json.loads(done.stdout)["error"]["message"]
    assert counterfoil("migrate", store, "base", "--grant-to", "worker", **variable).returncode == 2
    assert list(tmp_path.iterdir()) == []
