"""G20: the provider's records agree, whoever comes together, late or first."""

from typing import Final

from tests.mutants.mutant import Mutant

_LOADING: Final = "services/inventory/loading.py"
_STATEMENTS: Final = "services/inventory/statements.py"
_STOCK: Final = "services/inventory/stock.py"
_TESTS: Final = "tests/services/inventory"
_FEED: Final = """            watermark = _watermark(connection, tenant)
            rows = connection.execute(
                statement.where(RECEIPTS.c.sequence > query.after, RECEIPTS.c.sequence <= watermark)
                .order_by(RECEIPTS.c.sequence)
                .limit(query.limit)
            ).all()
"""

MUTANTS: Final = (
    Mutant(
        name="a-hold-that-ends-without-its-lock",
        rule="G20",
        file=_STATEMENTS,
        before="    .with_for_update(of=RESERVATIONS)\n",
        after="",
        tests=(f"{_TESTS}/test_loading.py::test_the_end_of_a_hold_waits_for_the_confirm_that_is_under_way",),
        paired="a confirm that commits while the hold's time ends; on SQLite one writer hides it",
    ),
    Mutant(
        name="a-hold-that-is-over-is-taken",
        rule="G20",
        file=_LOADING,
        before="if due and not due_wanted:",
        after="if False:",
        tests=(
            f"{_TESTS}/test_holds.py::test_the_end_of_a_hold_is_an_effect_with_a_receipt_that_names_its_parent",
            f"{_TESTS}/test_holds.py::test_a_redo_passes_over_a_hold_that_is_over_and_not_over_one_that_stands",
        ),
        paired="a confirm that comes before the service has noticed the end",
    ),
    Mutant(
        name="a-refusal-while-a-due-hold-keeps-the-stock",
        rule="G20",
        file=_LOADING,
        before="        if due:\n            raise Due(due)\n",
        after="",
        tests=(
            f"{_TESTS}/test_holds.py::test_a_hold_that_is_over_is_nobodys_and_its_late_confirm_and_release_are_refused",
        ),
        paired="a reserve that comes before the service has noticed the end: it would be refused for good",
    ),
    Mutant(
        name="a-key-taken-by-what-executes-nothing",
        rule="G20",
        file=_LOADING,
        before="idle = self._claimed - {entry.key for entry in self.books.entries}",
        after="idle: set[str] = set()",
        tests=(f"{_TESTS}/test_loading.py::test_no_key_is_taken_by_what_executes_nothing",),
        paired="a release of what is not there; the deferred foreign key hides the row and answers 500",
    ),
    Mutant(
        name="stock-written-over-what-changed",
        rule="G20",
        file=_STATEMENTS,
        before=', STOCK.c.version == sa.bindparam("of_version")',
        after="",
        tests=(f"{_TESTS}/test_writing_down.py::test_stock_that_is_not_as_it_was_read_is_never_overwritten",),
        paired="a SKU that changed under its lock",
    ),
    Mutant(
        name="a-digest-of-the-last-batch-alone",
        rule="G20",
        file="services/inventory/digests.py",
        before="int(known.digest, 16) if known else 0",
        after="0",
        tests=(f"{_TESTS}/verification/test_run.py::test_a_database_at_work_is_clean",),
        paired="an audit by digests, which would pass over it",
    ),
    Mutant(
        name="a-key-forgotten-with-its-body",
        rule="G20",
        file=_STATEMENTS,
        before="STORED_ONE = _STORED.where(",
        after="STORED_ONE = _STORED.where(RECEIPTS.c.receipt.is_not(None), ",
        tests=(f"{_TESTS}/test_housekeeping.py::test_what_retention_takes_is_the_body_and_never_the_key",),
        paired="a caller that comes back after the retention; the key's own row hides that it would be executed",
    ),
    Mutant(
        name="a-watermark-read-last",
        rule="G20",
        file="services/inventory/feed.py",
        before=_FEED,
        after=_FEED.replace("            watermark = _watermark(connection, tenant)\n", "").replace(
            ", RECEIPTS.c.sequence <= watermark", ""
        )
        + "            watermark = _watermark(connection, tenant)\n",
        tests=(f"{_TESTS}/test_late_commits.py::test_what_commits_while_a_page_is_read_is_on_the_next_page",),
        paired="a commit between two statements of one page; on SQLite both see one moment",
    ),
    Mutant(
        name="numbers-taken-before-the-stock",
        rule="G20",
        file=_STOCK,
        before="        loading.lock(wanting)\n",
        after="        receipts.take_numbers(connection, tenant, self._clock, receipts=0, reservations=0)\n"
        "        loading.lock(wanting)\n",
        tests=(f"{_TESTS}/test_loading.py::test_skus_are_locked_from_the_lowest_up_and_the_counter_last",),
        paired="a rival that holds a SKU and wants its numbers: a deadlock, which retries hide",
    ),
    Mutant(
        name="skus-locked-downward",
        rule="G20",
        file=_STATEMENTS,
        before="    .order_by(STOCK.c.sku)\n",
        after="    .order_by(STOCK.c.sku.desc())\n",
        tests=(f"{_TESTS}/test_loading.py::test_skus_are_locked_from_the_lowest_up_and_the_counter_last",),
        paired="a rival of another build that locks them upward: deadlocks, which retries hide",
    ),
    Mutant(
        name="a-batch-that-fails-for-one-rival",
        rule="G20",
        file=_STOCK,
        before="            raise NotTogether from error\n",
        after="            raise\n",
        tests=(
            f"{_TESTS}/test_loading.py::test_a_batch_whose_key_a_rival_holds_falls_apart_and_its_others_are_served",
        ),
        paired="a rival process that holds one key of a batch",
    ),
    Mutant(
        name="a-batch-that-begins-again-for-ever",
        rule="G20",
        file=_LOADING,
        before="            and place not in known\n",
        after="",
        tests=(f"{_TESTS}/test_any_batch.py::test_a_batch_with_a_late_call_that_a_closed_redo_names_comes_to_its_end",),
        paired="a late call, whose key is named by a redo that the same batch has closed",
    ),
    Mutant(
        name="a-reservation-that-anybody-may-move",
        rule="G20",
        file="services/inventory/books.py",
        before="if reservation.state not in {ReservationState.HELD, ReservationState.CONSUMED}:",
        after="if False:",
        tests=(f"{_TESTS}/test_books.py::test_a_reservation_moves_on_and_never_back",),
        paired="a second release under a key of its own",
    ),
    Mutant(
        name="a-guess-is-answered-before-what-it-guesses",
        rule="G20",
        file=_STOCK,
        before="        _require_no_guess(calls, judged, books, answers)\n",
        after="",
        tests=(
            f"{_TESTS}/test_any_batch.py::test_a_call_that_guesses_a_reservation_made_before_it_in_the_batch_finds_it",
        ),
        paired="a call that names a reservation before anybody has been told of it, in one batch with what makes it",
    ),
)
