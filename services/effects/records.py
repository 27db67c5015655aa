"""The records of the effect protocol: frozen, on the standard library alone.

All times are aware UTC datetimes. All of them cross Temporal's JSON converter unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from services.effects import keys
from services.effects.errors import InvalidEffect
from services.effects.states import TERMINAL, EffectState


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One change outside, as a workflow author asks for it.

    Attributes:
        name: stable and used once per scope; with the scope it is the effect's identity.
        kind: what is asked of the provider, e.g. `inventory.reserve`.
        request: the request's JSON members; the engine adds `reference`.
        path: parameters that the kind puts into the URL, e.g. `{"id": "reservation-1"}`.
        summary: what a person reads in Temporal's UI.
        why: what the decision says of this effect beside what its workflow says of all.
    """

    name: str
    kind: str
    request: Mapping[str, Any]
    path: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An effect that has been decided: what the journal records before the first byte leaves.

    Attributes:
        request: the canonical JSON text that is stored, compared and sent.
        supersedes: the keys of all former generations, newest first.
        decided_at: when `perform` was called, after any approval; the journal keeps the earliest it has seen.
        why: why the effect is wanted and who approved it: the decision's body.
    """

    origin: str
    scope: str
    name: str
    generation: int
    kind: str
    provider: str
    path: dict[str, str]
    request: str
    fingerprint: str
    fingerprint_version: str
    supersedes: tuple[str, ...]
    decided_at: datetime
    why: dict[str, str]
    workflow_id: str
    workflow_type: str
    first_run_id: str
    summary: str = ""

    @property
    def key(self) -> str:
        """The effect's key at the provider."""
        return keys.derive_key(self.origin, self.scope, self.name, self.generation)


def decide(
    effect: Effect,
    *,
    origin: str,
    scope: str,
    decided_at: datetime,
    why: Mapping[str, str],
    workflow_id: str,
    workflow_type: str,
    first_run_id: str,
    generation: int = 1,
) -> Intent:
    """Turn an author's effect into the intent that is journaled.

    Raises:
        InvalidEffect: no key, reference, canonical request or fingerprint can be made of it, or the name is not one
            for its kind.
    """
    keys.check_name(effect.name, effect.kind)
    request = dict(effect.request)
    if "reference" in request:
        raise InvalidEffect(f"The effect {effect.name!r:.80} sets reference itself; the engine does that.")
    if "reference" in keys.DEFAULTS.get(effect.kind, {}):
        request["reference"] = keys.reference(scope, effect.name, generation)
    return Intent(
        origin=origin,
        scope=scope,
        name=effect.name,
        generation=generation,
        kind=effect.kind,
        provider=effect.kind.partition(".")[0],
        path=dict(effect.path),
        request=keys.canonical(request).decode(),
        fingerprint=keys.fingerprint(effect.kind, effect.path, request),
        fingerprint_version=keys.FINGERPRINT_VERSION,
        supersedes=keys.former_keys(origin, scope, effect.name, generation),
        decided_at=decided_at,
        why={**why, **effect.why},
        workflow_id=workflow_id,
        workflow_type=workflow_type,
        first_run_id=first_run_id,
        summary=effect.summary,
    )


class Receipt:
    """The members of a receipt that the engine reads; `body` is the whole of it as it came.

    A receipt is the provider's half. Its outcome settles, never the HTTP status that carried it.
    """

    __slots__ = ("body", "created_at", "fingerprint", "key", "outcome", "reason", "receipt_id", "reservation_id")

    def __init__(self, body: Mapping[str, Any]) -> None:
        """Read a receipt.

        Raises:
            ValueError: a member that a conclusion stands on is missing or of another type, or the whole cannot be
                journaled: it would settle here and never in the journal.
        """
        self.body: dict[str, Any] = dict(body)
        keys.canonical(self.body)
        self.key: str = _text(body, "key")
        self.receipt_id: str = _text(body, "receipt_id")
        self.created_at: str = _text(body, "created_at")
        outcome = EffectState(_text(body, "outcome"))
        if outcome not in TERMINAL:
            raise ValueError(f"outcome {outcome} is no outcome")
        self.outcome: EffectState = outcome
        self.fingerprint: str | None = _text_or_none(body, "fingerprint")
        self.reason: str | None = _text_or_none(body, "reason")
        self.reservation_id: str | None = _text_or_none(body, "reservation_id")
        # A hold's expiry is nobody's request: it has a key of its own, and settles no effect.
        if outcome is not EffectState.VOIDED and self.fingerprint is None and body.get("kind") != keys.EXPIRY:
            raise ValueError(f"a {outcome} receipt without a fingerprint")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.receipt_id)

    def __repr__(self) -> str:
        return f"Receipt({self.receipt_id}, {self.key}, {self.outcome})"

    def totals(self, member: str) -> dict[str, int] | None:
        """Units per SKU over the receipt's lines, by `requested` or `granted`; None where it has no readable lines."""
        return _totals(self.body.get("lines"), member)


def requested(request: Mapping[str, Any]) -> dict[str, int] | None:
    """Units per SKU that a request asks for; None where it has no lines."""
    return _totals(request.get("lines"), "quantity")


def _totals(lines: Any, member: str) -> dict[str, int] | None:
    if not isinstance(lines, list):
        return None
    totals: dict[str, int] = {}
    for line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("sku"), str) or type(line.get(member)) is not int:
            return None
        totals[line["sku"]] = totals.get(line["sku"], 0) + line[member]
    return totals


def _text(body: Mapping[str, Any], member: str) -> str:
    value = body.get(member)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{member} is missing or not a text")
    return value


def _text_or_none(body: Mapping[str, Any], member: str) -> str | None:
    return None if body.get(member) is None else _text(body, member)


class Seen(StrEnum):
    """What one exchange with the provider showed."""

    RECEIPT = "receipt"
    ABSENT = "absent"  # no receipt is committed at this moment; proves nothing about a request under way
    NOT_SENT = "not_sent"  # no byte of this attempt left
    UNKNOWN = "unknown"  # sent or perhaps sent, and no usable answer
    BUSY = "busy"  # asked to come again: this delivery did nothing
    DEADLINE_REFUSED = "deadline_refused"  # 412: this delivery did nothing
    REQUEST_REFUSED = "request_refused"  # 400, 413, unknown reservation: this delivery did nothing
    CREDENTIALS_REFUSED = "credentials_refused"  # 401, 403: this delivery did nothing
    KEY_REUSED = "key_reused"  # 422: the key stands for another payload
    KEY_EXPIRED = "key_expired"  # the provider has dropped the receipt's body


class Source(StrEnum):
    """How something was learned."""

    SEND = "send"
    LOOK_UP = "look_up"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one exchange with the provider showed, as `settle` needs it.

    Attributes:
        reason: for people and logs; one line, no secrets.
        receipt: with RECEIPT only.
        predecessor: the former generation's receipt, where a send was refused because of it.
        observed_at: the provider's clock, with ABSENT.
        retry_after_seconds: when the provider asked for a pause.
    """

    seen: Seen
    source: Source
    reason: str = ""
    receipt: Receipt | None = None
    predecessor: Receipt | None = None
    observed_at: datetime | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What is journaled before an attempt's first byte.

    Attributes:
        attempt_id: fresh for each attempt; an ambiguous commit is read back by it.
        task_token: Temporal's token of the activity attempt, base64: by it a provably dead attempt can be failed.
        worker: the sending process: host, boot id, pid and start time.
    """

    attempt_id: str
    task_token: str
    worker: dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A mark as the journal gives it back, with what was last seen of it.

    Attributes:
        number: 1, 2, ...: attempts count real sends.
        not_after: what this attempt's request carries as Effect-Not-After.
        seen: None while nobody has heard an answer.
        task_token: as in the mark.
    """

    attempt_id: str
    number: int
    not_after: datetime
    marked_at: datetime
    worker: dict[str, str | int]
    seen: Seen | None = None
    task_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """One row of the journal's `effects`: the fold of the key's entries.

    Attributes:
        deadline: the latest Effect-Not-After ever marked; before any mark, the one that the first would carry.
        alarmed: a late observation on this key that no person has dealt with.
        receipt: what settled it; None on a settled row where a person asserted the end.
        closed_as: how its workflow ended, once that was seen (`ClosedAs`); None while it is open or nobody has looked.
        accepted: a person takes responsibility for it, whatever became of its workflow.
    """

    key: str
    origin: str
    scope: str
    name: str
    generation: int
    kind: str
    provider: str
    path: dict[str, str]
    request: str
    fingerprint: str
    fingerprint_version: str
    supersedes: tuple[str, ...]
    decided_at: datetime
    deadline: datetime
    born_by: str
    given_up: bool
    alarmed: bool
    state: EffectState
    version: int
    attempts: int
    workflow_id: str
    workflow_type: str
    first_run_id: str
    created_at: datetime
    settled_at: datetime | None = None
    receipt: Receipt | None = None
    closed_as: str | None = None
    accepted: bool = False

    @property
    def asserted(self) -> bool:
        """Whether a person's word settled it, and no receipt."""
        return self.state.terminal and self.receipt is None


class OutcomeState(StrEnum):
    """What `perform` answers."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    VOIDED = "voided"
    RELEASED = "released"  # committed once, and given back since


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an effect ended.

    Attributes:
        receipt: the provider's half, whole.
        replayed: it had been settled before this run asked for it.
        asserted: a person said so, with evidence, where the provider cannot say: there is no receipt of that end, or of
            its release.
        decided_at: the earliest decision of it that the journal knows; None in histories of before this was kept.
    """

    name: str
    key: str
    state: OutcomeState
    receipt: dict[str, Any]
    replayed: bool
    settled_at: datetime
    decided_at: datetime | None = None
    generation: int = 1
    asserted: bool = False

    @property
    def committed(self) -> bool:
        """Whether the effect stands."""
        return self.state is OutcomeState.COMMITTED

    @property
    def reservation_id(self) -> str | None:
        """The reservation that the effect made, if it made one."""
        value = self.receipt.get("reservation_id")
        return value if isinstance(value, str) else None

    def since(self, asked_at: datetime) -> Self:
        """The same outcome for a run that asked at this time.

        The time of the question is Temporal's, that of the settlement the journal's, and two clocks differ: what nobody
        decided earlier is no replay. Both decisions are on Temporal's clock.
        """
        decided_before = self.decided_at is None or self.decided_at < asked_at
        return replace(self, replayed=decided_before and self.settled_at < asked_at)
