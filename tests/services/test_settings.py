"""Settings: what each process reads, and what a person is told when something is missing."""

import os
import subprocess
import sys
from datetime import timedelta

import pydantic
import pytest

from services.effects.settle import SEND_WINDOW
from services.settings import (
    SEND_WINDOW_SECONDS,
    InventoryClientSettings,
    InventorySettings,
    JournalSettings,
    SettingsError,
    WorkerSettings,
)

COMPLETE = {
    "COUNTERFOIL_ORIGIN": "fra-prod",
    "COUNTERFOIL_JOURNAL_DATABASE_URL": "postgresql://journal:hunter2@db/journal",
    "COUNTERFOIL_INVENTORY_URL": "http://127.0.0.1:8090/",
    "COUNTERFOIL_INVENTORY_TOKEN": "hunter2",
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("COUNTERFOIL_"):
            monkeypatch.delenv(name)


def _set(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**COMPLETE, **changes}.items():
        monkeypatch.setenv(name, value)


def test_a_complete_environment_gives_a_worker_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults: a send window of a day, a margin of five minutes; the URL loses its last slash."""
    _set(monkeypatch)
    settings = WorkerSettings.read()
    assert (settings.origin, settings.send_window_seconds, settings.margin_seconds) == ("fra-prod", 86_400, 300)
    assert settings.inventory_url == "http://127.0.0.1:8090"
    assert settings.inventory_token.get_secret_value() == "hunter2"


def test_an_effect_is_unknown_too_long_after_an_hour_or_when_its_key_may_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever comes first."""
    _set(monkeypatch)
    assert WorkerSettings.read().unknown_after == timedelta(hours=1)
    assert WorkerSettings.read().metrics_address is None
    _set(monkeypatch, COUNTERFOIL_SEND_WINDOW_SECONDS="900", COUNTERFOIL_METRICS_ADDRESS="[::1]:9464")
    assert WorkerSettings.read().unknown_after == timedelta(seconds=900 + 300)
    assert WorkerSettings.read().metrics_address == "[::1]:9464"


def test_any_of_several_keys_may_sign_and_none_need_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next key beside the last; unset, receipts are taken unsigned."""
    _set(monkeypatch)
    assert WorkerSettings.read().signing_keys == ()
    _set(monkeypatch, COUNTERFOIL_INVENTORY_SIGNING_KEYS=f"{KEY}, {KEY}-last")
    settings = WorkerSettings.read()
    assert settings.signing_keys == (KEY.encode(), f"{KEY}-last".encode())
    assert KEY not in repr(settings)


def test_settings_are_frozen_and_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repr in a log holds neither the token nor the database's password, and nothing can be changed."""
    _set(monkeypatch)
    settings = WorkerSettings.read()
    assert "hunter2" not in repr(settings) + str(settings)
    with pytest.raises(pydantic.ValidationError):
        settings.margin_seconds = 1


@pytest.mark.parametrize("name", COMPLETE)
def test_a_missing_or_empty_variable_is_one_sentence_with_an_example(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The sentence names the variable and shows how to set it; empty means not set."""
    _set(monkeypatch, **{name: ""})
    with pytest.raises(SettingsError) as caught:
        WorkerSettings.read()
    assert str(caught.value).startswith(f"{name} is not set: ")
    assert f"for example {name}=" in str(caught.value)
    assert str(caught.value).count("COUNTERFOIL_") == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("COUNTERFOIL_ORIGIN", "Hunter2 prod"),
        ("COUNTERFOIL_ORIGIN", "x" * 58),
        ("COUNTERFOIL_INVENTORY_URL", "ftp://hunter2"),
        ("COUNTERFOIL_INVENTORY_URL", "http://me:hunter2@host"),
        ("COUNTERFOIL_INVENTORY_TOKEN", "hunter2\nX: y"),
        ("COUNTERFOIL_INVENTORY_CA_FILE", "/nowhere/hunter2.pem"),
        ("COUNTERFOIL_INVENTORY_CA_FILE", __file__),
        ("COUNTERFOIL_INVENTORY_SIGNING_KEYS", "hunter2,"),
        ("COUNTERFOIL_INVENTORY_SIGNING_KEYS", "hunter2 hunter2"),
        ("COUNTERFOIL_SEND_WINDOW_SECONDS", "hunter2"),
        ("COUNTERFOIL_SEND_WINDOW_SECONDS", "0"),
        ("COUNTERFOIL_MARGIN_SECONDS", "-5"),
        ("COUNTERFOIL_MARGIN_SECONDS", "86400"),
        ("COUNTERFOIL_UNKNOWN_ALARM_SECONDS", "0"),
        ("COUNTERFOIL_METRICS_ADDRESS", "hunter2:9464"),
        ("COUNTERFOIL_METRICS_ADDRESS", "127.0.0.1"),
        ("COUNTERFOIL_METRICS_ADDRESS", "[127.0.0.1:9464"),
    ],
)
def test_a_bad_variable_is_named_and_its_value_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A secret that was put into the wrong variable does not reach a log."""
    _set(monkeypatch, **{name: value})
    with pytest.raises(SettingsError, match=rf"^{name} is not usable \(") as caught:
        WorkerSettings.read()
    assert "hunter2" not in str(caught.value).lower()
    assert caught.value.__cause__ is None


def test_every_bad_variable_is_said_at_once() -> None:
    """Nobody mends an environment one start at a time."""
    with pytest.raises(SettingsError) as caught:
        WorkerSettings.read()
    assert all(name in str(caught.value) for name in COMPLETE)


def test_each_process_reads_only_what_it_needs() -> None:
    """The inventory never sees the journal's URL, a caller of the inventory sees no database."""
    assert set(InventorySettings.model_fields) == {
        "inventory_database_url",
        "inventory_tokens",
        "inventory_retention_seconds",
        "inventory_signing_keys",
    }
    assert set(InventoryClientSettings.model_fields) == {"inventory_url", "inventory_token", "inventory_ca_file"}
    assert set(JournalSettings.model_fields) == {"journal_database_url"}


def test_nothing_is_read_at_import() -> None:
    """A module may be imported in any environment, the worst one included."""
    done = subprocess.run(
        [sys.executable, "-c", "import services.settings"],
        env={"COUNTERFOIL_MARGIN_SECONDS": "no number"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_send_window_longer_than_the_workflows_go_on_sending_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be sent in its second half, and the wait would look like an outage."""
    assert timedelta(seconds=SEND_WINDOW_SECONDS) == SEND_WINDOW
    _set(monkeypatch, COUNTERFOIL_SEND_WINDOW_SECONDS=str(SEND_WINDOW_SECONDS + 1))
    with pytest.raises(SettingsError, match="COUNTERFOIL_SEND_WINDOW_SECONDS"):
        WorkerSettings.read()


HORIZON_SECONDS = 41 * 86_400 + 300  # a day's window, three of outage, seven on hold, a copy of thirty, and the margin


def test_a_retention_shorter_than_the_recovery_horizon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would come back after the receipts are gone does not start; at the horizon it does (E44)."""
    _set(monkeypatch, COUNTERFOIL_INVENTORY_RETENTION_SECONDS="900")
    with pytest.raises(
        SettingsError,
        match=rf"^COUNTERFOIL_INVENTORY_RETENTION_SECONDS .*COUNTERFOIL_RECOVERY_HORIZON_SECONDS, {HORIZON_SECONDS} ",
    ):
        WorkerSettings.read()
    _set(monkeypatch, COUNTERFOIL_INVENTORY_RETENTION_SECONDS=str(HORIZON_SECONDS))
    assert WorkerSettings.read().rules["retention"] == timedelta(seconds=HORIZON_SECONDS)
    _set(monkeypatch, COUNTERFOIL_INVENTORY_RETENTION_SECONDS=str(HORIZON_SECONDS - 1))
    with pytest.raises(SettingsError):
        WorkerSettings.read()


def test_a_recovery_horizon_of_ones_own_counts_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps no copy for long may say so; below the window and the margin nobody can."""
    _set(
        monkeypatch,
        COUNTERFOIL_RECOVERY_HORIZON_SECONDS="604800",
        COUNTERFOIL_INVENTORY_RETENTION_SECONDS="604800",
    )
    assert WorkerSettings.read().rules["retention"] == timedelta(days=7)
    _set(monkeypatch, COUNTERFOIL_INVENTORY_RETENTION_SECONDS="604799")
    with pytest.raises(SettingsError, match="COUNTERFOIL_INVENTORY_RETENTION_SECONDS is not usable"):
        WorkerSettings.read()
    _set(monkeypatch, COUNTERFOIL_RECOVERY_HORIZON_SECONDS="86699")
    with pytest.raises(SettingsError, match="COUNTERFOIL_RECOVERY_HORIZON_SECONDS is not usable"):
        WorkerSettings.read()


def test_without_a_retention_receipts_are_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what the inventory does unless it is told."""
    _set(monkeypatch)
    assert WorkerSettings.read().rules == {
        "send_window": timedelta(days=1),
        "margin": timedelta(minutes=5),
        "retention": None,
    }


SERVICE = {
    "COUNTERFOIL_INVENTORY_DATABASE_URL": "sqlite:///x.db",
    "COUNTERFOIL_INVENTORY_TOKENS": "acme=token-a",
}
KEY = "0123456789abcdef-printable-~!key"


def test_the_inventory_keeps_receipts_for_ever_and_unsigned_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is needed."""
    _set(monkeypatch, **SERVICE)
    settings = InventorySettings.read()
    assert (settings.retention, settings.signing_keys) == (None, ())


def test_the_inventory_is_told_how_long_and_with_which_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds; and the keys in their order, of which the first signs."""
    old = "x" * 40
    _set(
        monkeypatch,
        **SERVICE,
        COUNTERFOIL_INVENTORY_RETENTION_SECONDS="86400",
        COUNTERFOIL_INVENTORY_SIGNING_KEYS=f" {KEY}, {old} ",
    )
    settings = InventorySettings.read()
    assert (settings.retention, settings.signing_keys) == (timedelta(days=1), (KEY.encode(), old.encode()))
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETENTION_SECONDS", "0"),
        ("RETENTION_SECONDS", "-1"),
        ("RETENTION_SECONDS", "1.5"),
        ("RETENTION_SECONDS", "forever"),
        ("RETENTION_SECONDS", "9999999999999"),
        ("SIGNING_KEYS", "s3cret" * 5),
        ("SIGNING_KEYS", f"{KEY},"),
        ("SIGNING_KEYS", f"{KEY},s3cret"),
        ("SIGNING_KEYS", f"s3cret {KEY}"),
        ("SIGNING_KEYS", f"s3crét{KEY}"),
        ("SIGNING_KEYS", f"{KEY}\n"),
    ],
)
def test_what_the_inventory_cannot_be_told_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """And no key is shown."""
    _set(monkeypatch, **SERVICE, **{f"COUNTERFOIL_INVENTORY_{name}": value})
    with pytest.raises(SettingsError, match=rf"^COUNTERFOIL_INVENTORY_{name} is not usable \(") as caught:
        InventorySettings.read()
    assert "s3cr" not in str(caught.value)
    assert KEY not in str(caught.value)
