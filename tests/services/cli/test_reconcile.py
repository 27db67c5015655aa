"""`counterfoil reconcile`: how it ends says what the sweep could not do."""

from typing import Any

import pytest

from activities.contracts import Swept
from services.cli import reconcile as module
from services.cli.main import counterfoil
from services.cli.output import run


@pytest.mark.parametrize(
    ("swept", "code", "note"),
    [
        (Swept(looked_at=2, matched=1, waiting=1), 0, ""),
        (Swept(looked_at=2, matched=1, unheard=1), 3, "stays pending; nothing is lost"),
    ],
)
def test_what_the_inventory_said_nothing_of_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], swept: Swept, code: int, note: str
) -> None:
    """The table is shown all the same."""

    async def connect() -> None:
        return None

    async def sweep_now(*_arguments: Any) -> Swept:
        return swept

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "sweep_now", sweep_now)
    monkeypatch.setenv("COUNTERFOIL_ORIGIN", "workshop")
    assert run(counterfoil, ["reconcile"], name="counterfoil") == code
    said = capsys.readouterr()
    assert "settled by a receipt" in said.out
    assert note in said.err
