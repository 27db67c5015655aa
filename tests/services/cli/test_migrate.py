"""`counterfoil migrate`: which database, and what is said when it cannot be used."""

import json
from pathlib import Path

import pytest

from tests.services.cli.conftest import Run

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
