"""The search attributes that make unsettled effects findable in Temporal's UI and by visibility queries.

They hold unsettled effects only. Those of closed runs are frozen as they were: what was pending when a run closed may
have been settled since, and the journal says so (`counterfoil effects show KEY`).
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

EFFECT_STATE = SearchAttributeKey.for_keyword_list("EffectState")
EFFECT_KEY = SearchAttributeKey.for_keyword_list("EffectKey")
PENDING_EFFECTS = SearchAttributeKey.for_int("PendingEffects")
UNKNOWN_SINCE = SearchAttributeKey.for_datetime("UnknownSince")
ALL: tuple[SearchAttributeKey[Any], ...] = (EFFECT_STATE, EFFECT_KEY, PENDING_EFFECTS, UNKNOWN_SINCE)

# Among the states: an effect with a late observation that waits for a person.
ALARM = "alarm"

# Over 2,048 bytes the server terminates the workflow; the rest is room for its own encoding.
KEY_LIMIT = 40
KEY_BYTES = 1900
MEMO_BYTES = 2000
MEMO_LINES = 40


def updates(
    *, states: Iterable[str], keys: Sequence[str], unknown_since: datetime | None
) -> list[SearchAttributeUpdate[Any]]:
    """The attributes of a workflow whose unsettled effects have these states and keys."""
    return [
        EFFECT_STATE.value_set(sorted(set(states))),
        EFFECT_KEY.value_set(fitting(keys)),
        PENDING_EFFECTS.value_set(len(keys)),
        UNKNOWN_SINCE.value_unset() if unknown_since is None else UNKNOWN_SINCE.value_set(unknown_since),
    ]


def fitting(keys: Sequence[str]) -> list[str]:
    """As many keys as the server takes."""
    kept = list(keys[:KEY_LIMIT])
    while len(json.dumps(kept)) > KEY_BYTES:
        kept.pop()
    return kept


def fitting_lines(lines: Sequence[str]) -> str:
    """As many whole lines as the memo takes, and at the end how many more there are."""
    kept = list(lines[:MEMO_LINES])
    while True:
        rest = len(lines) - len(kept)
        text = "\n".join([*kept, f"- and {rest} more, in the query `pending`"] if rest else kept)
        # Counted as it is written: JSON spells what is not ASCII in six bytes.
        if len(json.dumps(text)) <= MEMO_BYTES:
            return text
        kept.pop()
