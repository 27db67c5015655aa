"""A person's commands: checked before anything happens, and the same words are the same command."""

from itertools import combinations

import pytest

from services.effects.commands import Command, CommandName
from services.effects.errors import InvalidCommand

KEY = "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"


def command(**changes: object) -> Command:
    """A resolution."""
    said = {
        "name": CommandName.RESOLVE,
        "key": KEY,
        "by": "ada",
        "reason": "the supplier says so",
        "arguments": {"wanted": "voided", "evidence": "ticket 7"},
    }
    return Command(**(said | changes))  # type: ignore[arg-type]


def test_the_same_words_are_the_same_command_and_any_other_word_makes_another() -> None:
    """Its id is a function of all that was said, and of nothing else."""
    others = [
        command(),
        command(name=CommandName.REDO),
        command(key=KEY.replace("g1", "g2")),
        command(by="bob"),
        command(reason="the supplier wrote so"),
        command(arguments={"wanted": "voided", "evidence": "ticket 8"}),
        command(arguments={"wanted": "voided", "evidence": "ticket 7", "second": "bob"}),
    ]
    assert command().id == command().id
    assert all(one.id != other.id for one, other in combinations(others, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"by": ""},
        {"by": "  "},
        {"by": "a" * 129},
        {"reason": ""},
        {"reason": "a\x00b"},
        {"reason": "\ud800"},
        {"arguments": {"evidence": " "}},
        {"key": "no key"},
    ],
    ids=str,
)
def test_what_lacks_who_or_why_or_its_evidence_is_refused(changes: dict[str, object]) -> None:
    """A08: nobody can tell later why it was done."""
    with pytest.raises(InvalidCommand, match="Nothing was changed"):
        command(**changes)


def test_the_entry_says_all_that_was_said() -> None:
    """Who, why, what, and what it stands on."""
    body = command().body(ruling="asserted")
    assert body == {
        "command": "resolve",
        "command_id": command().id,
        "by": "ada",
        "reason": "the supplier says so",
        "wanted": "voided",
        "evidence": "ticket 7",
        "ruling": "asserted",
    }
