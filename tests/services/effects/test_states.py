"""The table of moves: complete, the same as the diagram in the design document, terminal states final."""

import itertools
import re
from pathlib import Path

import pytest

from services.effects.states import MOVES, TERMINAL, EffectState, agree, sources

DESIGN = (Path(__file__).parents[3] / "docs" / "design.md").read_text(encoding="utf-8")


def _diagram() -> list[tuple[str, str]]:
    section = DESIGN.split("## States", 1)[1]
    blocks = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", section, re.DOTALL)
    return re.findall(r"^\s*(\S+) --> (\S+)\s*$", blocks[0], re.MULTILINE)


def test_the_diagram_in_the_design_document_shows_exactly_the_allowed_moves() -> None:
    """Every arrow is a move, every move an arrow; born pending, ended in the terminal states."""
    arrows = _diagram()
    assert len(arrows) == len(set(arrows))
    moves = {(one, other) for one, other in arrows if "[*]" not in (one, other)}
    assert moves == {(str(state), str(target)) for state, targets in MOVES.items() for target in targets}
    assert [target for start, target in arrows if start == "[*]"] == [EffectState.PENDING]
    assert {start for start, target in arrows if target == "[*]"} == set(TERMINAL)


def test_every_state_has_its_moves() -> None:
    """The table has one line per state."""
    assert set(MOVES) == set(EffectState)


@pytest.mark.parametrize("state", EffectState)
def test_a_state_is_terminal_exactly_when_nothing_leaves_it(state: EffectState) -> None:
    """Terminal is final, and every other state can be left for every outcome."""
    assert state.terminal == (state in TERMINAL) == (not MOVES[state])
    assert state.terminal or MOVES[state] >= TERMINAL


def test_no_move_leads_back() -> None:
    """Following moves never meets a state twice."""
    for state, targets in MOVES.items():
        assert state not in targets
        assert EffectState.PENDING not in targets
        assert all(state not in MOVES[target] for target in targets)


@pytest.mark.parametrize("target", EffectState)
def test_sources_are_the_moves_read_backwards(target: EffectState) -> None:
    """The guarded update leaves exactly the states that may be left for the target."""
    assert sources(target) == {state for state in EffectState if target in MOVES[state]}
    assert not sources(target) & TERMINAL


def test_voided_and_rejected_agree_and_committed_agrees_with_itself_alone() -> None:
    """What did nothing agrees with what did nothing."""
    for one, other in itertools.product(TERMINAL, TERMINAL):
        assert agree(one, other) == (EffectState.COMMITTED not in {one, other} or one is other)
        assert agree(one, other) == agree(other, one)
