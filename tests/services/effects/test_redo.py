"""When another generation may be decided."""

from typing import Any

import pytest

from services.effects.keys import LAST_GENERATION
from services.effects.records import EffectRow
from services.effects.redo import Former, refusal
from services.effects.states import EffectState
from tests.services.effects.halves import make_intent, make_receipt, make_release, make_row


def ended(state: EffectState, generation: int = 1, **changes: Any) -> EffectRow:
    """A row that its receipt settled."""
    intent = make_intent(generation=generation)
    return make_row(intent, **{"state": state, "receipt": make_receipt(intent, state)} | changes)


def released(state: EffectState = EffectState.COMMITTED, reason: str | None = None) -> EffectRow:
    """A release, and how it ended."""
    intent = make_release()
    return make_row(intent, state=state, receipt=make_receipt(intent, state, reason=reason))


def why(*former: Former, by: str = "ada", second: str = "") -> str:
    """Why it is refused."""
    return refusal(former, by=by, second=second)


REJECTED, VOIDED, COMMITTED = EffectState.REJECTED, EffectState.VOIDED, EffectState.COMMITTED


@pytest.mark.parametrize("state", [REJECTED, VOIDED])
def test_what_did_nothing_may_be_redone(state: EffectState) -> None:
    """G9: as often as there are generations."""
    assert why(Former(generation=1, row=ended(state))) == ""
    assert why(Former(generation=1, row=ended(VOIDED)), Former(generation=2, row=ended(state, 2))) == ""


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (None, "no row"),
        (make_row(make_intent()), "is pending"),
        (make_row(make_intent(), state=EffectState.IN_DOUBT), "is in doubt"),
        (ended(VOIDED, alarmed=True), "late observation"),
        (ended(COMMITTED), "committed and not released"),
    ],
    ids=["no row", "pending", "in doubt", "alarmed", "committed"],
)
@pytest.mark.parametrize("place", [1, 2])
def test_one_former_generation_that_may_still_do_something_or_stands_bars_it(
    row: EffectRow | None, said: str, place: int
) -> None:
    """G9, E46: whichever it is, and it is named."""
    good = Former(generation=3 - place, row=ended(VOIDED, 3 - place))
    bad = Former(generation=place, row=row)
    refused = why(*sorted((good, bad), key=lambda former: former.generation))
    assert f"generation {place} " in refused
    assert said in refused


@pytest.mark.parametrize(
    ("release", "passes"),
    [
        (released(), True),
        (released(REJECTED, "hold-expired"), True),
        (released(REJECTED, "invalid-transition"), True),
        (released(REJECTED, "unknown-sku"), False),
        (released(VOIDED), False),
        (make_row(make_release()), False),
        (make_row(make_release(), state=VOIDED), False),
    ],
    ids=["released", "hold ran out", "back already", "refused otherwise", "voided", "pending", "asserted"],
)
def test_what_was_committed_may_be_redone_once_it_is_back(release: EffectRow, passes: bool) -> None:
    """A21, E49: by its release, or because time or somebody else gave it back."""
    assert (why(Former(generation=1, row=ended(COMMITTED), release=release)) == "") is passes


def test_a_late_report_that_is_believed_counts_as_committed_until_it_is_back() -> None:
    """The row says voided, and the units are gone all the same."""
    believed: dict[str, Any] = {"row": ended(VOIDED), "late_stands": True}
    assert "committed and not released" in why(Former(generation=1, **believed))
    assert why(Former(generation=1, **believed, release=released())) == ""


def test_an_end_that_was_only_asserted_needs_a_second_person() -> None:
    """A08: neither who asserted it, nor who wants the redo, under whichever spelling."""
    asserted = Former(generation=1, row=ended(VOIDED, receipt=None), asserted_by="Bob")
    for second in ("", " ", "bob", "BOB", " bob ", "ada", "Ada"):
        assert "second person" in why(asserted, second=second)
    assert why(asserted, second="eve") == ""


def test_a_release_that_was_only_asserted_gives_back_with_a_second_person() -> None:
    """No receipt says so either; and a word that it was not done gives nothing back."""
    row, release = ended(COMMITTED), make_row(make_release(), state=COMMITTED)
    given_back = Former(generation=1, row=row, release=release, release_asserted_by="Bob")
    for second in ("", "bob", "ada"):
        assert "the release of generation 1 by Bob" in why(given_back, second=second)
    assert why(given_back, second="eve") == ""
    for state in (VOIDED, REJECTED):
        not_done = Former(
            generation=1, row=row, release=make_row(make_release(), state=state), release_asserted_by="Bob"
        )
        assert "committed and not released" in why(not_done, second="eve")


def test_the_last_generation_is_the_last() -> None:
    """Seventeen: what came before them fits into one header."""
    former = [Former(generation=number, row=ended(VOIDED, number)) for number in range(1, LAST_GENERATION + 1)]
    assert why(*former[:-1]) == ""
    assert "is the last one" in why(*former)
