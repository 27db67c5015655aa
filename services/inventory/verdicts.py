"""What a call comes to: decided from what was read, before anything is written or numbered. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.inventory.contract import Line
from services.inventory.problems import Problem


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a call comes to, before it has its numbers."""

    lines: tuple[Line, ...]
    movements: tuple[Movement, ...] = ()
    reservation_id: str | None = None
    reason: Problem | None = None
    detail: str = ""
    members: Mapping[str, Any] = field(default_factory=dict)


def refuse_reservation(wanted: Mapping[str, int], available: Mapping[str, int]) -> Verdict | None:
    """Why these units cannot be taken from this stock, or None if they can: all lines or none."""
    unknown = [sku for sku in wanted if sku not in available]
    if unknown:
        return Verdict(
            lines=refused(wanted),
            reason=Problem.UNKNOWN_SKU,
            detail=f"Never delivered: {', '.join(unknown)}. Nothing was reserved.",
        )
    short = [f"{sku} ({available[sku]} of {quantity})" for sku, quantity in wanted.items() if available[sku] < quantity]
    if short:
        return Verdict(
            lines=refused(wanted),
            reason=Problem.INSUFFICIENT_STOCK,
            detail=f"Not enough available: {', '.join(short)}. Nothing was reserved.",
        )
    return None


def granted(quantities: Mapping[str, int]) -> tuple[Line, ...]:
    """Every line in full."""
    return tuple(Line(sku=sku, requested=quantity, granted=quantity) for sku, quantity in quantities.items())


def refused(quantities: Mapping[str, int]) -> tuple[Line, ...]:
    """No line at all."""
    return tuple(Line(sku=sku, requested=quantity, granted=0) for sku, quantity in quantities.items())
