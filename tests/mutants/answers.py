"""G1, G3, G5, G8, G14: what the client and `settle` may conclude from what came over the wire."""

from typing import Final

from tests.mutants.mutant import Mutant

_CLIENT: Final = "activities/inventory_client.py"
_SETTLE: Final = "services/effects/settle.py"
_BREAK_TESTS: Final = "tests/activities/test_breaks.py"
_FOLD_TESTS: Final = "tests/services/effects/test_fold.py"
_CLASSIFY_TESTS: Final = "tests/activities/test_classify.py"
_MODEL_TESTS: Final = "tests/services/journal/test_any_attempts.py"
_NEXT_TESTS: Final = "tests/activities/test_next_request.py"
_RESERVATION_TESTS: Final = "tests/activities/test_reservations.py"
_SETTLE_TESTS: Final = "tests/services/effects/test_settle.py"
_TLS_TESTS: Final = "tests/activities/test_tls.py"

MUTANTS: Final = (
    Mutant(
        name="the-send-gate-stands-before-the-handshake",
        rule="G1",
        file=_CLIENT,
        before='frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})',
        after='frozenset({"connection.connect_tcp.started"})',
        tests=(
            f"{_TLS_TESTS}::test_a_handshake_that_takes_until_the_deadline_lets_no_byte_through",
            f"{_TLS_TESTS}::test_a_handshake_that_does_not_end_has_sent_nothing",
            "tests/activities/test_inventory_client.py::test_no_byte_leaves_a_kept_connection_once_the_deadline_has_passed",
        ),
        paired="a handshake that takes until the deadline, and a connection that is used again",
    ),
    Mutant(
        name="what-no-network-error-is-was-not-sent",
        rule="G5",
        file=_CLIENT,
        before="seen = Seen.UNKNOWN if gate.opened else Seen.NOT_SENT",
        after="seen = Seen.UNKNOWN if gate.opened and isinstance(error, httpx.NetworkError) else Seen.NOT_SENT",
        tests=(
            f"{_BREAK_TESTS}::test_whatever_is_raised_is_not_sent_before_the_first_byte_and_unknown_after_it",
            f"{_BREAK_TESTS}::test_a_goodbye_says_nothing_of_what_was_done",
        ),
        paired="a farewell or a protocol error over a committed effect",
    ),
    Mutant(
        name="a-later-busy-forgets-an-earlier-unknown",
        rule="G5",
        file=_SETTLE,
        before="if seen and DID_NOTHING.issuperset(seen) else",
        after="if seen and seen[-1] in DID_NOTHING else",
        tests=(
            f"{_FOLD_TESTS}::test_nothing_that_comes_before_or_after_takes_an_unknown_back",
            f"{_MODEL_TESTS}::test_an_attempt_that_did_nothing_takes_no_earlier_unknown_back",
        ),
        paired="a second delivery that is refused while the first is still under way",
    ),
    Mutant(
        name="a-receipt-that-nobody-signed-settles",
        rule="G5",
        file=_CLIENT,
        before="wrong = wrong_signature(receipt.body, signing_keys) if signing_keys else None",
        after="wrong = None",
        tests=(
            f"{_CLASSIFY_TESTS}::test_with_keys_a_receipt_shows_something_only_when_one_of_them_has_signed_it",
            "tests/activities/test_intents.py::test_an_unsigned_receipt_settles_nothing_where_receipts_are_signed",
        ),
        paired="somebody between who answers for the provider",
    ),
    Mutant(
        name="any-signature-will-do",
        rule="G5",
        file="services/effects/signatures.py",
        before="any(hmac.compare_digest(sign(receipt, key), signature) for key in keys)",
        after='signature.startswith("hmac-sha256:")',
        tests=(
            "tests/services/effects/test_signatures.py::test_no_member_of_a_signed_receipt_can_be_changed",
            "tests/services/effects/test_signatures.py::test_any_key_of_ours_may_have_signed",
        ),
        paired="a receipt that was changed on its way",
    ),
    Mutant(
        name="a-receipt-for-another-reservation-settles",
        rule="G3",
        file=_SETTLE,
        before='if row.kind in OF_A_RESERVATION and receipt.reservation_id != row.path.get("id"):',
        after="if False:",
        tests=(
            f"{_SETTLE_TESTS}::test_what_is_done_to_a_reservation_is_compared_by_the_reservation_and_its_lines",
            f"{_RESERVATION_TESTS}::test_a_receipt_for_another_reservation_or_for_a_part_of_it_halts",
        ),
        paired="a provider that confirms somebody else's hold and says so under our key",
    ),
    Mutant(
        name="a-part-of-a-reservation-settles",
        rule="G3",
        file=_SETTLE,
        before='asked = receipt.totals("requested")',
        after="return None",
        tests=(
            f"{_SETTLE_TESTS}::test_what_is_done_to_a_reservation_is_compared_by_the_reservation_and_its_lines",
            f"{_RESERVATION_TESTS}::test_a_receipt_for_another_reservation_or_for_a_part_of_it_halts",
        ),
        paired="a provider that gives back less than was taken",
    ),
    Mutant(
        name="a-refusal-after-the-expiry-is-no-end",
        rule="G8",
        file=_CLIENT,
        before='(409, "hold-expired"): Seen.RECEIPT,',
        after='(409, "hold-expired"): Seen.REQUEST_REFUSED,',
        tests=(f"{_RESERVATION_TESTS}::test_a_confirmation_or_a_release_after_the_expiry_is_a_kept_rejection",),
        paired="a confirmation after the hold has run out; a void would say the same, so requests are counted",
    ),
    Mutant(
        name="a-contradiction-is-just-an-unknown",
        rule="G3",
        file=_SETTLE,
        before="return EffectState.IN_DOUBT, Next.WAIT, problem",
        after="return EffectState.PENDING, Next.LOOK_UP, problem",
        tests=(f"{_NEXT_TESTS}::test_what_contradicts_the_intent_halts_the_effect",),
        paired="a receipt for another payload, and then an absence; the sends are counted",
    ),
    Mutant(
        name="a-send-without-a-total-deadline",
        rule="G14",
        file=_CLIENT,
        before="async with asyncio.timeout(self._deadline_seconds):",
        after="async with asyncio.timeout(None):",
        tests=(f"{_BREAK_TESTS}::test_a_send_ends_at_its_total_deadline",),
        paired="a reply that drips: no read time-out ever ends it, and it keeps its slot",
    ),
)
