"""`counterfoil inventory verify`: clean or the first violation, for people and for programs."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from services.database import migrate
from tests.services.cli.conftest import Run
from tests.services.inventory.verification.workload import SIGNING_KEY, fill


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with everything in it."""
    path = tmp_path_factory.mktemp("filled") / "inventory.db"
    migrate("inventory", f"sqlite:///{path}")
    fill(f"sqlite:///{path}")
    return path


@pytest.fixture
def damaged(filled: Path, tmp_path: Path) -> str:
    """The URL of a copy with one receipt that was changed."""
    path = tmp_path / "damaged.db"
    with closing(sqlite3.connect(filled)) as whole, closing(sqlite3.connect(path)) as copy:
        whole.backup(copy)
        copy.execute("DROP TRIGGER receipts_no_update")
        copy.execute(
            "UPDATE receipts SET receipt_sha256 = upper(receipt_sha256) WHERE tenant = 'globex' AND sequence = 3"
        )
        copy.commit()
    return f"sqlite:///{path}"


def test_a_clean_database_is_0_and_says_what_was_looked_at(counterfoil: Run, filled: Path) -> None:
    """Named on the command line or by the environment; signatures where there are keys."""
    url = f"sqlite:///{filled}"
    done = counterfoil("inventory", "verify", "--database-url", url, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["clean"], told["violation"], told["database"]) == (True, None, url)
    assert told["checked"]["tenants"] == 2
    assert told["checked"]["signatures"] == 0
    settings = {"COUNTERFOIL_INVENTORY_DATABASE_URL": url, "COUNTERFOIL_INVENTORY_SIGNING_KEYS": SIGNING_KEY.decode()}
    done = counterfoil("inventory", "verify", "--json", **settings)
    told = json.loads(done.stdout)
    assert told["checked"]["signatures"] == told["checked"]["receipts"] - told["checked"]["expired_receipts"] > 0
    done = counterfoil("inventory", "verify", **settings)
    assert done.returncode == 0
    assert "Every record is what the contract says" in done.stdout
    assert "Signatures were not" not in done.stdout
    assert re.search(rf"^signatures +{told['checked']['signatures']}$", done.stdout, re.MULTILINE)


def test_the_first_violation_is_1_and_named(counterfoil: Run, damaged: str) -> None:
    """Rule, tenant, receipt, what is stored, what was expected, and what to do."""
    done = counterfoil("inventory", "verify", "--database-url", damaged, "--json")
    assert done.returncode == 1
    violation = json.loads(done.stdout)["violation"]
    assert (violation["rule"], violation["tenant"]) == ("S9", "globex")
    assert violation["where"].startswith("receipt-3, key ")
    assert violation["stored"].partition(" ")[2].lower() == violation["expected"].partition(",")[0]
    done = counterfoil("inventory", "verify", "--database-url", damaged)
    assert done.returncode == 1
    assert "S9: tenant globex, receipt-3" in done.stdout
    assert "Signatures were not looked at" in done.stdout


def test_another_key_s_signatures_are_a_finding(counterfoil: Run, filled: Path) -> None:
    """A receipt that none of the keys has signed is nobody's."""
    keys = f"{'a' * 32},{'b' * 32}"
    url = f"sqlite:///{filled}"
    done = counterfoil("inventory", "verify", "--database-url", url, "--json", COUNTERFOIL_INVENTORY_SIGNING_KEYS=keys)
    assert (done.returncode, json.loads(done.stdout)["violation"]["rule"]) == (1, "signature")


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (("--database-url", "postgresql://me:hunter2@db/x"), {}, "may not hold a password"),
        (("--database-url", "postgresql://db/x?password=hunter2"), {}, "may not hold a password"),
        ((), {}, "COUNTERFOIL_INVENTORY_DATABASE_URL is not set"),
        (("--database-url", "mysql://db/x"), {}, "is not supported"),
        (
            ("--database-url", "sqlite:///x.db"),
            {"COUNTERFOIL_INVENTORY_SIGNING_KEYS": "hunter2"},
            "COUNTERFOIL_INVENTORY_SIGNING_KEYS is not usable",
        ),
    ],
)
def test_wrong_use_is_2(counterfoil: Run, arguments: tuple[str, ...], settings: dict[str, str], words: str) -> None:
    """And no secret is repeated."""
    done = counterfoil("inventory", "verify", *arguments, **settings)
    assert done.returncode == 2
    assert words in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_another_schema_is_2_and_a_database_that_is_not_there_is_3(counterfoil: Run, tmp_path: Path) -> None:
    """Nothing is made in its place."""
    path = tmp_path / "old.db"
    migrate("inventory", f"sqlite:///{path}", "inventory_0001")
    done = counterfoil("inventory", "verify", "--database-url", f"sqlite:///{path}")
    assert done.returncode == 2
    assert "counterfoil migrate inventory" in done.stderr
    done = counterfoil("inventory", "verify", "--database-url", f"sqlite:///{tmp_path}/missing/inventory.db", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (3, "unreachable")
    done = counterfoil("inventory", "verify", "--database-url", "postgresql://nobody@127.0.0.1:1/x", "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (3, "unreachable")
