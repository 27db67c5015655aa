"""The books of one tenant while a batch of calls is judged: pure, in memory, in the order in which the calls came.

What was read and locked goes in; what is to be written comes out. Nothing here reads a clock or a database, and nothing
has a number yet: sequences are handed out when it is known how many are needed.

- A key that is in the books is repeated, whether an earlier transaction or an earlier call of the batch put it there.
- A redo closes the former generations that are absent, also when it is then refused itself.
- Every change of stock is a movement with the next version of its SKU, and belongs to a committed entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, assert_never

from services.inventory.contract import (
    Call,
    Expiry,
    KeyedCall,
    Kind,
    Line,
    Outcome,
    ReservationState,
    VoidCall,
    expiry_key,
)
from services.inventory.problems import Fault, Invalid, Problem, Refused, no_reservation

# What a SKU can have had in all: beyond it a reader of JSON may see another number than was written.
MAX_UNITS = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A key's receipt as an earlier transaction wrote it."""

    key: str
    kind: Kind
    outcome: Outcome
    fingerprint: str | None
    http_status: int
    receipt_id: str
    sequence: int
    reservation_id: str | None
    receipt: str | None  # None: retention has taken it
    problem: str | None


@dataclass(slots=True, kw_only=True)
class Balance:
    """A SKU's stock row, changed as the calls are judged."""

    sku: str
    received: int = 0
    available: int = 0
    held: int = 0
    consumed: int = 0
    version: int = 0
    version_before: int = 0  # 0: it is new

    def move(self, quantity: int, *, kind: str, **changes: int) -> "Movement":
        """Change the balances by signed amounts, as the next version."""
        for name, change in changes.items():
            setattr(self, name, getattr(self, name) + change)
        self.version += 1
        return Movement(kind=kind, sku=self.sku, version=self.version, quantity=quantity, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A change of one SKU's balances, as its ledger keeps it."""

    kind: str
    sku: str
    version: int
    quantity: int
    received: int = 0
    available: int = 0
    held: int = 0
    consumed: int = 0

    def columns(self) -> dict[str, Any]:
        """What the ledger's row says of it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True, kw_only=True)
class Reserved:
    """A reservation, changed as the calls are judged; without an id and an end while it is new."""

    state: ReservationState
    quantities: Mapping[str, int]  # SKUs ascending
    reservation_id: str | None = None
    expires_at: datetime | None = None
    parent_key: str = ""
    reference: str | None = None
    hold_seconds: int | None = None


@dataclass(slots=True, kw_only=True)
class Entry:
    """A receipt to be written, before it has its numbers."""

    key: str
    kind: Kind
    outcome: Outcome
    reason: Problem | str | None = None
    detail: str = ""
    call: KeyedCall | None = None
    lines: tuple[Line, ...] = ()
    movements: tuple[Movement, ...] = ()
    reservation: Reserved | None = None
    reference: str | None = None
    predecessor: "Known | None" = None


Known = Stored | Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A call whose key was in the books: it gets what its key came to."""

    known: Known


Judgement = Entry | Repeated | Refused


@dataclass(slots=True, kw_only=True)
class Books:
    """What the batch may look at and change.

    Attributes:
        receipts: by key: all that is stored of the keys the batch names, and every entry as it is made.
        stock: by SKU, locked.
        reservations: by id, locked.
        entries: what is to be written, in order.
    """

    receipts: dict[str, Known] = field(default_factory=dict)
    stock: dict[str, Balance] = field(default_factory=dict)
    reservations: dict[str, Reserved] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def judge(self, call: Call) -> Judgement:
        """What a call comes to."""
        match call:
            case KeyedCall():
                return self._keyed(call)
            case VoidCall():
                return self._void(call)
            case Expiry():
                return self._expire(call)
            case _:
                assert_never(call)

    def _add(self, entry: Entry) -> Entry:
        self.receipts[entry.key] = entry
        self.entries.append(entry)
        return entry

    def _void(self, call: VoidCall) -> Judgement:
        known = self.receipts.get(call.key)
        if known is None:
            return self._add(_tombstone(call.key, "voided"))
        return _expired(known) or Repeated(known=known)

    def _keyed(self, call: KeyedCall) -> Judgement:
        known = self.receipts.get(call.key)
        if known is not None:
            return _expired(known) or _mismatch(known, call) or Repeated(known=known)
        if call.reservation_id is not None and call.reservation_id not in self.reservations:
            return no_reservation()
        if call.kind is Kind.DELIVER and self._overflows(call):
            return _too_many()
        standing = self._close_predecessors(call)
        if standing is not None:
            return self._add(
                _rejection(
                    call,
                    Problem.PREDECESSOR_COMMITTED,
                    "A former generation of this effect is committed and its units are not released. "
                    "Nothing was executed.",
                    reservation=self.reservations.get(call.reservation_id or ""),
                    predecessor=standing,
                )
            )
        return self._add(self._execute(call))

    def _overflows(self, call: KeyedCall) -> bool:
        return any(self.stock[sku].received + quantity > MAX_UNITS for sku, quantity in call.quantities.items())

    def _close_predecessors(self, call: KeyedCall) -> Known | None:
        """Close the former generations that never came; the newest that stands in the way, if one does."""
        standing = None
        for key in call.supersedes:
            known = self.receipts.get(key)
            if known is None:
                self._add(_tombstone(key, "superseded"))
            elif standing is None and self._stands(known):
                standing = known
        return standing

    def _stands(self, known: Known) -> bool:
        """Whether what was done is still so. What a delivery or a release did is never taken back."""
        if known.outcome is not Outcome.COMMITTED:
            return False
        if known.kind not in {Kind.RESERVE, Kind.CONFIRM}:
            return True
        reservation = (
            known.reservation if isinstance(known, Entry) else self.reservations.get(known.reservation_id or "")
        )
        return reservation is None or reservation.state in {ReservationState.HELD, ReservationState.CONSUMED}

    def _execute(self, call: KeyedCall) -> Entry:
        match call.kind:
            case Kind.RESERVE:
                return self._reserve(call)
            case Kind.CONFIRM:
                return self._confirm(call, self.reservations[call.reservation_id or ""])
            case Kind.RELEASE:
                return self._release(call, self.reservations[call.reservation_id or ""])
            case Kind.DELIVER:
                movements = tuple(
                    self.stock[sku].move(quantity, kind="delivery", received=quantity, available=quantity)
                    for sku, quantity in call.quantities.items()
                )
                return _committed(call, call.quantities, movements)
            case Kind.VOID | Kind.EXPIRY:
                raise ValueError(f"{call.kind} is not a call")
            case _:
                assert_never(call.kind)

    def _reserve(self, call: KeyedCall) -> Entry:
        refusal = self._refuse_reservation(call)
        if refusal is not None:
            return refusal
        held = call.hold_seconds is not None
        reservation = Reserved(
            state=ReservationState.HELD if held else ReservationState.CONSUMED,
            quantities=call.quantities,
            hold_seconds=call.hold_seconds,
            parent_key=call.key,
            reference=call.reference,
        )
        kind, to = ("hold", "held") if held else ("reserve", "consumed")
        return _committed(
            call, call.quantities, self._move(call.quantities, kind=kind, taken="available", given=to), reservation
        )

    def _refuse_reservation(self, call: KeyedCall) -> Entry | None:
        """Why these units cannot be taken, or None if they can: all lines or none."""
        never = [sku for sku in call.quantities if sku not in self.stock or self.stock[sku].version == 0]
        if never:
            return _rejection(call, Problem.UNKNOWN_SKU, f"Never delivered: {', '.join(never)}. Nothing was reserved.")
        short = [
            f"{sku} ({self.stock[sku].available} of {quantity})"
            for sku, quantity in call.quantities.items()
            if self.stock[sku].available < quantity
        ]
        if short:
            return _rejection(
                call, Problem.INSUFFICIENT_STOCK, f"Not enough available: {', '.join(short)}. Nothing was reserved."
            )
        return None

    def _confirm(self, call: KeyedCall, reservation: Reserved) -> Entry:
        if reservation.state is not ReservationState.HELD:
            return _out_of_state(call, reservation)
        reservation.state = ReservationState.CONSUMED
        movements = self._move(reservation.quantities, kind="confirm", taken="held", given="consumed")
        return _committed(call, reservation.quantities, movements, reservation)

    def _release(self, call: KeyedCall, reservation: Reserved) -> Entry:
        if reservation.state not in {ReservationState.HELD, ReservationState.CONSUMED}:
            return _out_of_state(call, reservation)
        taken = "held" if reservation.state is ReservationState.HELD else "consumed"
        reservation.state = ReservationState.RELEASED
        movements = self._move(reservation.quantities, kind="release", taken=taken, given="available")
        return _committed(call, reservation.quantities, movements, reservation)

    def _expire(self, call: Expiry) -> Judgement:
        reservation = self.reservations.get(call.reservation_id)
        if reservation is None or reservation.state is not ReservationState.HELD:
            return no_reservation()  # nothing to end: somebody else was first
        reservation.state = ReservationState.EXPIRED
        return self._add(
            Entry(
                key=expiry_key(reservation.parent_key),
                kind=Kind.EXPIRY,
                outcome=Outcome.COMMITTED,
                lines=_lines(reservation.quantities, reservation.quantities),
                movements=self._move(reservation.quantities, kind="expiry", taken="held", given="available"),
                reservation=reservation,
                reference=reservation.reference,
            )
        )

    def _move(self, quantities: Mapping[str, int], *, kind: str, taken: str, given: str) -> tuple[Movement, ...]:
        return tuple(
            self.stock[sku].move(quantity, kind=kind, **{taken: -quantity, given: quantity})
            for sku, quantity in quantities.items()
        )


def key_expired(known: Stored) -> Refused:
    """The answer for a key whose receipt retention has taken; what is left of it is shown."""
    return Refused(
        Problem.KEY_EXPIRED,
        f"This key came to its end: {known.outcome.value}. Its receipt is older than receipts are kept. This delivery "
        "executed nothing, and none ever will under this key.",
        expired={
            "receipt_id": known.receipt_id,
            "sequence": known.sequence,
            "outcome": known.outcome.value,
            "reservation_id": known.reservation_id,
        },
    )


def _expired(known: Known) -> Refused | None:
    return key_expired(known) if isinstance(known, Stored) and known.receipt is None else None


def _mismatch(known: Known, call: KeyedCall) -> Refused | None:
    """The refusal of a key that stands for another request; a tombstone stands for none."""
    fingerprint = known.fingerprint if isinstance(known, Stored) else known.call and known.call.fingerprint
    if known.kind is Kind.VOID or (known.kind, fingerprint) == (call.kind, call.fingerprint):
        return None
    return Refused(
        Problem.IDEMPOTENCY_KEY_REUSED,
        "This key was used for another request. Nothing was executed. "
        "Read the key's receipt and compare its request with this one.",
    )


def _too_many() -> Refused:
    """Nothing is stored: no receipt could say what was delivered, and the key is free for less."""
    return Invalid([Fault(at="/quantity", message=f"With it the SKU would have had more than {MAX_UNITS} units.")])


def _tombstone(key: str, reason: str) -> Entry:
    return Entry(
        key=key,
        kind=Kind.VOID,
        outcome=Outcome.VOIDED,
        reason=reason,
        detail="This key was closed before anything came under it. Nothing was executed, and nothing ever will be.",
    )


def _committed(
    call: KeyedCall,
    quantities: Mapping[str, int],
    movements: tuple[Movement, ...],
    reservation: Reserved | None = None,
) -> Entry:
    return Entry(
        key=call.key,
        kind=call.kind,
        outcome=Outcome.COMMITTED,
        call=call,
        lines=_lines(quantities, quantities),
        movements=movements,
        reservation=reservation,
        reference=call.reference,
    )


def _rejection(
    call: KeyedCall,
    reason: Problem,
    detail: str,
    *,
    reservation: Reserved | None = None,
    predecessor: Known | None = None,
) -> Entry:
    quantities = reservation.quantities if reservation is not None else call.quantities
    return Entry(
        key=call.key,
        kind=call.kind,
        outcome=Outcome.REJECTED,
        reason=reason,
        detail=detail,
        call=call,
        lines=_lines(quantities, {}),
        reservation=reservation,
        reference=call.reference,
        predecessor=predecessor,
    )


def _out_of_state(call: KeyedCall, reservation: Reserved) -> Entry:
    if reservation.state is ReservationState.EXPIRED:
        return _rejection(
            call,
            Problem.HOLD_EXPIRED,
            f"The hold of {reservation.reservation_id} has ended and its units went back. Nothing was executed.",
            reservation=reservation,
        )
    return _rejection(
        call,
        Problem.INVALID_TRANSITION,
        f"{reservation.reservation_id} is {reservation.state}. Nothing was executed.",
        reservation=reservation,
    )


def _lines(requested: Mapping[str, int], granted: Mapping[str, int]) -> tuple[Line, ...]:
    return tuple(Line(sku=sku, requested=quantity, granted=granted.get(sku, 0)) for sku, quantity in requested.items())
