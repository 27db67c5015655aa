"""What a person may command about one effect, and how it is written down: the same command is the same entry.

A command is a function of its name, key, who, why and arguments. Repeated, it is the same command and gets the same
answer; with another word it is another one.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from services.effects.errors import InvalidCommand
from services.effects.keys import PROVIDER_KEY, canonical
from services.effects.people import problem_with_name
from services.effects.records import Effect
from services.effects.states import EffectState

# The type of the workflow that sends for a command: for as long as that takes, and answerable for nothing after it.
SENDER: Final = "EffectCommand"
# Of everything that a person says beside a name.
TEXT_LIMIT = 4000
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class CommandName(StrEnum):
    """The commands about one effect."""

    GIVE_UP = "give-up"  # nothing more is sent; the key is closed
    RESOLVE = "resolve"  # say how it ended, with evidence
    REDO = "redo"  # the next generation
    REPLAY = "replay"  # the same generation again: the original outcome, or the same bytes
    RELEASE = "release"  # give a reservation back, as an effect of its own
    ACCEPT = "accept"  # it stands, and somebody knows of it
    ADOPT = "adopt"  # a receipt without an intent gets its row
    WRITE_OFF = "write-off"  # nothing will be given back


class RulingKind(StrEnum):
    """What a command's entry itself did to the row; the others only ask, and the provider's answer moves the row."""

    ASSERTED = "asserted"  # the end, without a receipt
    ACCEPTED = "accepted"  # it leaves the list of what ended workflows left standing
    BELIEVED = "believed"  # the late report is true: the effect stands, whatever the row says
    DISMISSED = "dismissed"  # the late report is wrong
    WRITTEN_OFF = "written-off"  # what the late report, or the orphan, took will not come back


# Those that deal with a late observation.
LATE_RULINGS = frozenset({RulingKind.BELIEVED, RulingKind.DISMISSED, RulingKind.WRITTEN_OFF})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, checked.

    Attributes:
        by: who; recorded as claimed.
        reason: why, in a person's words.
        arguments: what else was said, by name; empty ones are left out.

    Raises:
        InvalidCommand: who or why is missing, or something cannot be written down.
    """

    name: CommandName
    key: str
    by: str
    reason: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not PROVIDER_KEY.fullmatch(self.key):
            raise InvalidCommand(f"{self.key!r:.140} is no key. Nothing was changed.")
        problem = problem_with_name(self.by)
        if problem:
            raise InvalidCommand(f"`{self.name}` needs who gives it (--by): it {problem}. Nothing was changed.")
        for what, text in {"why (--reason)": self.reason, **self.arguments}.items():
            if not text.strip() or len(text) > TEXT_LIMIT or _UNPRINTABLE.search(text):
                raise InvalidCommand(
                    f"`{self.name}` needs {what}: 1 to {TEXT_LIMIT} printable characters. Nothing was changed."
                )

    @property
    def id(self) -> str:
        """SHA-256, hex, of the canonical JSON `[name, key, by, reason, arguments]`."""
        said = [self.name.value, self.key, self.by, self.reason, dict(self.arguments)]
        return hashlib.sha256(canonical(said)).hexdigest()

    def body(self, **more: Any) -> dict[str, Any]:
        """The body of its `resolution` entry."""
        return {
            "command": self.name.value,
            "command_id": self.id,
            "by": self.by,
            "reason": self.reason,
            **self.arguments,
            **more,
        }


class What(StrEnum):
    """How a command ended."""

    DONE = "done"
    REFUSED = "refused"  # nothing was changed, or it ended otherwise than asked: the sentence says which
    UNCONFIRMED = "unconfirmed"  # the provider gave no usable answer: repeat the same command


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSend:
    """What a workflow has to perform for a command: an effect in its scope, in its highest generation.

    Attributes:
        key: what that comes to.
        why: the body of a decision, where there is none yet.
    """

    origin: str
    scope: str
    effect: Effect
    key: str
    why: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The answer to a command.

    Attributes:
        state: of the effect now; None where the journal has none.
        said: what happened and what comes next, in a sentence or two.
        repeated: the same command was given before.
        receipt_id: what settled it, if a receipt did.
        workflow_id: whom to wake.
        send: what a workflow has to perform now.
        new_key: of the redo's generation, or of the release.
        dry_run: nothing was changed; `said` is what would be.
    """

    key: str
    command: CommandName
    what: What
    state: EffectState | None
    said: str
    repeated: bool = False
    receipt_id: str | None = None
    workflow_id: str | None = None
    send: ToSend | None = None
    new_key: str | None = None
    dry_run: bool = False
