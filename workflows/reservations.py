"""What an author asks of the inventory: reserve, confirm, release. `workflows.effects` hands them on."""

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from services.effects.errors import InvalidEffect
from services.effects.keys import confirm_name, release_name
from services.effects.records import Effect, Outcome

# Runs that began before it was so go on as they began.
REASON_IN_THE_DECISION = "a-releases-reason-is-in-its-decision"
# A year: what is held longer is not held but taken.
LONGEST_HOLD_SECONDS = 31_536_000


def reserve(name: str, quantities: Mapping[str, int], *, hold_seconds: int | None = None) -> Effect:
    """Take units out of stock: `{sku: units}`.

    Args:
        name: the effect's stable name.
        quantities: what to take.
        hold_seconds: hold the units for so long, by the provider's clock; `confirm` consumes them, and what is not
            confirmed in time comes back by itself. None consumes them at once.
    """
    lines = [{"sku": sku, "quantity": quantity} for sku, quantity in quantities.items()]
    request: dict[str, Any] = {"lines": lines}
    wanted = "reserve " + ", ".join(f"{quantity} {sku}" for sku, quantity in quantities.items())
    if hold_seconds is not None:
        if type(hold_seconds) is not int or not 1 <= hold_seconds <= LONGEST_HOLD_SECONDS:
            raise failure(
                InvalidEffect(
                    f"{name!r:.80} cannot hold for {hold_seconds!r:.80} seconds: it must be a whole number from 1 to "
                    f"{LONGEST_HOLD_SECONDS}. Nothing was recorded or sent."
                )
            )
        request["hold_seconds"] = hold_seconds
        wanted += f" for {hold_seconds} s"
    return Effect(name=name, kind="inventory.reserve", request=request, summary=wanted)


def confirm(outcome: Outcome) -> Effect:
    """Consume what a committed hold keeps: an effect of its own, with its own key and receipt.

    Rejected with `hold-expired` where the hold has run out: its units may be somebody else's by then.
    """
    reservation_id = _reservation_of(outcome, "confirm")
    return Effect(
        name=confirm_name(outcome.name, outcome.generation),
        kind="inventory.confirm",
        path={"id": reservation_id},
        request={},
        summary=f"confirm {reservation_id}",
    )


def release(outcome: Outcome, *, reason: str | None = None) -> Effect:
    """Give back what a committed reservation took: an effect of its own, with its own key and receipt.

    Args:
        outcome: of the reservation.
        reason: for the journal. It is no part of the request: whoever releases, and for whatever reason, asks for the
            same.
    """
    reservation_id = _reservation_of(outcome, "release")
    in_the_request = reason is not None and not workflow.patched(REASON_IN_THE_DECISION)
    return Effect(
        name=release_name(outcome.name, outcome.generation),
        kind="inventory.release",
        path={"id": reservation_id},
        request={"reason": reason} if in_the_request else {},
        summary=f"release {reservation_id}",
        why={} if reason is None else {"reason": reason},
    )


def _reservation_of(outcome: Outcome, verb: str) -> str:
    if outcome.reservation_id is None:
        raise failure(InvalidEffect(f"The outcome of {outcome.name} holds no reservation: there is nothing to {verb}."))
    return outcome.reservation_id


def failure(error: Exception) -> ApplicationError:
    """An error of the protocol as Temporal carries it: by its type's name, and for good."""
    return ApplicationError(str(error), type=type(error).__name__, non_retryable=True)
