"""The table of docs/operations.md: what each command does in each state, and what it answers the second time."""

import itertools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.effect_desk import EffectDesk
from services.effects.commands import Ruling, What
from services.effects.records import EffectRow, Seen
from services.effects.states import EffectState
from services.journal.rows import Entry
from tests.services.standing import STATES, Standing, standing, standings

__all__ = ["standing", "standings"]  # fixtures

DOCUMENT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
_numbers = itertools.count(1)
BY, REASON = "ada", "nobody needs it any more"

Call = Callable[[EffectDesk, str, str], Awaitable[Ruling]]

# By the first column of the table; called with the desk, the key and the scope.
COMMANDS: Mapping[str, Call] = {
    "give-up": lambda desk, key, _: desk.give_up(key, by=BY, reason=REASON),
    "resolve --as voided": lambda desk, key, _: desk.resolve(
        key, to=EffectState.VOIDED, evidence="ticket 12", by=BY, reason=REASON
    ),
    "resolve --as committed": lambda desk, key, _: desk.resolve(
        key, to=EffectState.COMMITTED, evidence="ticket 12", by=BY, reason=REASON
    ),
    "redo": lambda desk, key, _: desk.redo(key, by=BY, reason=REASON),
    "redo --second NAME": lambda desk, key, _: desk.redo(key, by=BY, reason=REASON, second="bo"),
    "replay": lambda desk, key, _: desk.replay(key, by=BY, reason=REASON, workflow_open=False),
    "release": lambda desk, key, _: desk.release(key, by=BY, reason=REASON),
    "accept": lambda desk, key, _: desk.accept(key, by=BY, reason=REASON),
    "adopt": lambda desk, key, scope: desk.adopt(
        key, scope=scope, name="reserve-filter", generation=1, by=BY, reason=REASON
    ),
    "write-off": lambda desk, key, _: desk.write_off(key, by=BY, reason=REASON),
}


def _table() -> tuple[list[str], dict[str, list[str]]]:
    """The columns, and each row's cells by its first one."""
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\| .* \|$", DOCUMENT, re.MULTILINE)
    ]
    first = next(number for number, row in enumerate(rows) if row[:2] == ["command", "no effect"])
    wanted = [row for row in rows[first + 1 :] if row[0] in COMMANDS]
    return rows[first][1:], {row[0]: row[1:] for row in wanted}


COLUMNS, ROWS = _table()


def test_the_table_has_every_command_and_every_state() -> None:
    """What is left out would be compared with nothing."""
    assert list(STATES) == COLUMNS
    assert list(ROWS) == list(COMMANDS)
    assert {len(cells) for cells in ROWS.values()} == {len(STATES)}


def test_every_word_of_the_table_is_explained_below_it() -> None:
    """And no word is that the table does not use."""
    used = {cell for cells in ROWS.values() for cell in cells}
    assert used == set(re.findall(r"^- \*([a-z ]+)\*:", DOCUMENT, re.MULTILINE))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Both halves of a key at one moment."""

    row: EffectRow | None
    entries: tuple[Entry, ...]
    written: int
    receipt: str | None

    @property
    def state(self) -> str:
        """The row's, in words."""
        return "nothing" if self.row is None else self.row.state.replace("_", " ")

    @classmethod
    async def of(cls, standing: Standing, key: str) -> "Moment":
        """Read them."""
        answer = await standing.provider.look_up(key)
        assert answer.seen in {Seen.RECEIPT, Seen.ABSENT}
        receipt = answer.receipt
        return cls(
            row=standing.journal.effect(key),
            entries=standing.journal.entries(key),
            written=standing.written,
            receipt=None if receipt is None else receipt.receipt_id,
        )


def word(before: Moment, after: Moment, ruling: Ruling) -> str:
    """What a command did, by what can be seen of it in both halves, in the table's words."""
    moved = (after.row is not None and after.row.state) != (before.row is not None and before.row.state)
    if ruling.what is What.REFUSED:
        return "refused" if after == before else f"ends {after.state}" if moved else "stays"
    assert ruling.what is What.DONE
    if ruling.send is not None:
        return "sends"
    added = after.entries[len(before.entries) :]
    done = [str(entry.body["ruling"]).replace("-", " ") for entry in added if "ruling" in entry.body]
    return "stands" if after == before else done[-1] if done else after.state


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_does_what_its_cell_says_and_the_second_time_nothing_more(
    standing: Standing, command: str, state: str
) -> None:
    """E25, A08: the halves stay as the first one left them, and the answer is the same."""
    scope = f"INC-{next(_numbers)}"
    key = (await standing.reach(state, scope)).key
    before = await Moment.of(standing, key)
    first = await COMMANDS[command](standing.desk, key, scope)
    after = await Moment.of(standing, key)
    assert word(before, after, first) == ROWS[command][COLUMNS.index(state)]
    second = await COMMANDS[command](standing.desk, key, scope)
    assert await Moment.of(standing, key) == after
    assert (first.what, first.state, first.receipt_id) == (second.what, second.state, second.receipt_id)
    assert (first.send, first.new_key) == (second.send, second.new_key)
    if second.what is What.DONE:
        assert second.repeated is (after != before)
