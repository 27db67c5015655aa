"""The states of an effect's row and the table of allowed moves."""

from collections.abc import Mapping
from enum import StrEnum


class EffectState(StrEnum):
    """What the journal knows of an effect."""

    # Entered by an attempt together with its first mark, or by recovery. Left by a receipt, a tombstone or a person.
    # A crash leaves it: the intent is recorded, it was possibly sent, the outcome is unknown.
    PENDING = "pending"
    # Entered when no rule can settle it. Left by a receipt that turns up, or by a resolution. A crash leaves it.
    IN_DOUBT = "in_doubt"
    # Entered on a committed receipt. Final.
    COMMITTED = "committed"
    # Entered on a stored business rejection. Final: another try is a redo.
    REJECTED = "rejected"
    # Entered on a tombstone: the key is closed and nothing was done under it. Final.
    VOIDED = "voided"

    @property
    def terminal(self) -> bool:
        """Whether the effect is settled for good."""
        return not MOVES[self]


TERMINAL = frozenset({EffectState.COMMITTED, EffectState.REJECTED, EffectState.VOIDED})

MOVES: Mapping[EffectState, frozenset[EffectState]] = {
    EffectState.PENDING: TERMINAL | {EffectState.IN_DOUBT},
    EffectState.IN_DOUBT: TERMINAL,
    EffectState.COMMITTED: frozenset(),
    EffectState.REJECTED: frozenset(),
    EffectState.VOIDED: frozenset(),
}


def sources(target: EffectState) -> frozenset[EffectState]:
    """The states from which an effect may move to `target`."""
    return frozenset(state for state, targets in MOVES.items() if target in targets)


def agree(one: EffectState, other: EffectState) -> bool:
    """Whether two terminal states say the same of the world: voided and rejected agree, both did nothing."""
    return (one is EffectState.COMMITTED) == (other is EffectState.COMMITTED)
