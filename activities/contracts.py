"""The activities by name and type: what workflows know of them. No I/O here.

The concrete classes override the methods and repeat the decorator with the same name.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime

from temporalio import activity

from services.effects.commands import CommandName, Ruling
from services.effects.records import Intent, Outcome
from services.effects.states import EffectState

# What workflows' time-outs and the activities' own limits have to agree on:
# heartbeats come more often than the least heartbeat time-out that a busy worker can keep (1 s);
HEARTBEAT_EVERY_SECONDS = 0.3
# one send may take this long in all, and a shutdown waits for it.
SEND_DEADLINE_SECONDS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The highest generation of an effect that was decided, where that is not the one that was asked for."""

    generation: int
    decided_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How an effect stands after an activity looked at it, as the journal's row says.

    Attributes:
        outcome: what `perform` may answer; None while nothing may be answered yet.
        waiting: why there is no outcome and what happens next, for people.
        send_again: the provider has no receipt: the same key may be sent again.
        mismatch: the key stands for another payload than the caller's; both are shown.
        later: a redo was decided: that generation is the one to perform and to answer for.
        alarmed: a late observation on it waits for a person.
    """

    key: str
    state: EffectState
    outcome: Outcome | None = None
    waiting: str = ""
    send_again: bool = False
    mismatch: str = ""
    later: Later | None = None
    alarmed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleRequest:
    """Settle this effect; with `given_up`, forbid every further attempt first."""

    intent: Intent
    given_up: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A decision to record, or, with `ask_only`, to look for."""

    origin: str
    scope: str
    name: str
    decided_at: datetime
    body: dict[str, str] = field(default_factory=dict)
    ask_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingDecision:
    """The decision that stands, if any; `mine` when this request recorded it."""

    body: dict[str, str]
    decided_at: datetime
    mine: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One page of the sweep, by key: of what is unsettled, or of what committed.

    Small enough to end within its activity's time though each look-up and void takes as long as it may.
    """

    after_key: str = ""
    limit: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep did, page or whole.

    Attributes:
        looked_at: unsettled rows.
        owned: left alone, since a live attempt may own them.
        matched: settled by a receipt that was looked up.
        voided: settled by closing the key.
        waiting: still unsettled: their workflow sends again, or a person decides.
        unheard: the provider gave no usable answer, or the journal failed on this row, or the calls of its scope had
            taken all their time in this sweep.
        followed: committed effects whose workflows were asked about.
        left: of these, the ones that were found to be left standing by a workflow that ended otherwise than completed.
    """

    looked_at: int = 0
    owned: int = 0
    matched: int = 0
    voided: int = 0
    waiting: int = 0
    unheard: int = 0
    followed: int = 0
    left: int = 0

    def plus(self, other: "Swept") -> "Swept":
        """Both together."""
        return Swept(
            looked_at=self.looked_at + other.looked_at,
            owned=self.owned + other.owned,
            matched=self.matched + other.matched,
            voided=self.voided + other.voided,
            waiting=self.waiting + other.waiting,
            unheard=self.unheard + other.unheard,
            followed=self.followed + other.followed,
            left=self.left + other.left,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A swept page; `next_after` is None after the last one."""

    swept: Swept
    next_after: str | None = None


class InventoryActivities(ABC):
    """One activity per effect: the intent, its mark, the send and the observation are inside."""

    @activity.defn(name="inventory.reserve")
    @abstractmethod
    async def reserve(self, intent: Intent) -> Standing:
        """Reserve units: consume them, or hold them for some time."""

    @activity.defn(name="inventory.confirm")
    @abstractmethod
    async def confirm(self, intent: Intent) -> Standing:
        """Consume what a hold keeps."""

    @activity.defn(name="inventory.release")
    @abstractmethod
    async def release(self, intent: Intent) -> Standing:
        """Give a reservation back."""


class EffectActivities(ABC):
    """What is done about an effect whose activity did not answer."""

    @activity.defn(name="effects.settle")
    @abstractmethod
    async def settle(self, request: SettleRequest) -> Standing:
        """Own the row, look the receipt up, void where the rules say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A person's command about one effect (`services.effects.commands`)."""

    name: CommandName
    key: str
    by: str
    reason: str
    arguments: dict[str, str] = field(default_factory=dict)


class CommandActivities(ABC):
    """A person's commands, as a workflow's Updates give them."""

    @activity.defn(name="effects.command")
    @abstractmethod
    async def command(self, request: CommandRequest) -> Ruling:
        """Journal it, ask the provider, and answer what came of it."""


class JournalActivities(ABC):
    """Decisions that stand alone: where a person decides, or where nothing is to be done."""

    @activity.defn(name="journal.record_decision")
    @abstractmethod
    async def record_decision(self, request: DecisionRequest) -> StandingDecision | None:
        """Record a decision unless one stands, and give back the one that stands."""


class ReconciliationActivities(ABC):
    """The sweep."""

    @activity.defn(name="reconciliation.sweep_page")
    @abstractmethod
    async def sweep_page(self, request: PageRequest) -> Page:
        """Match one page of unsettled effects to their receipts."""

    @activity.defn(name="reconciliation.follow_page")
    @abstractmethod
    async def follow_page(self, request: PageRequest) -> Page:
        """Look at how the workflows of one page of committed effects ended."""
