"""G2, G3: one key for one matter, and one payload for one key."""

from typing import Final

from tests.mutants.mutant import Mutant

_KEYS: Final = "services/effects/keys.py"
_RECORDS: Final = "services/effects/records.py"
_STORE: Final = "services/journal/store.py"
_SETTLE: Final = "services/effects/settle.py"
_BOOKS: Final = "services/inventory/books.py"
_JOURNAL_TABLES: Final = "migrations/journal/versions/journal_0001_first.py"
_KEYS_TESTS: Final = "tests/services/effects/test_keys.py"
_RECORDS_TESTS: Final = "tests/services/effects/test_records.py"
_STORE_TESTS: Final = "tests/services/journal/test_store.py"
_SETTLE_TESTS: Final = "tests/services/effects/test_settle.py"
_STOCK_TESTS: Final = "tests/services/inventory/test_stock.py"
_TABLES_TESTS: Final = "tests/services/journal/test_tables.py"

_DERIVED: Final = "return keys.derive_key(self.origin, self.scope, self.name, self.generation)"
_RUN: Final = "return await beating(self._attempts.run(intent, task_token=task_token))"
_ONE_KEY: Final = "tests/activities/test_inventory.py::test_every_attempt_of_every_run_has_the_one_key"
_ONE_ROW: Final = f"{_TABLES_TESTS}::test_the_database_itself_has_one_row_per_key_and_one_decision_per_name"


def _scoped(what: str) -> str:
    """The activity's intent with something of this attempt in its scope."""
    return (
        "from dataclasses import replace\n"
        f'            intent = replace(intent, scope=f"{{intent.scope}}/{{activity.info().{what}}}")\n'
        f"            {_RUN}"
    )


MUTANTS: Final = (
    Mutant(
        name="the-first-runs-id-in-the-key",
        rule="G2",
        file=_RECORDS,
        before=_DERIVED,
        after='return keys.derive_key(self.origin, f"{self.scope}/{self.first_run_id}", self.name, self.generation)',
        tests=(
            f"{_RECORDS_TESTS}::test_neither_the_run_nor_the_approval_is_in_the_key_or_the_fingerprint",
            "tests/workflows/test_effects.py::test_the_key_is_the_same_after_a_start_again",
        ),
        paired="terminate and start again",
    ),
    Mutant(
        name="the-runs-id-as-scope",
        rule="G2",
        file="workflows/effects.py",
        before="self._scope = scope or self._scope or workflow.info().workflow_id",
        after="self._scope = scope or self._scope or workflow.info().run_id",
        tests=("tests/workflows/test_effects.py::test_the_key_is_the_same_after_a_start_again",),
        paired="reset, retry, or start again",
    ),
    Mutant(
        name="the-activitys-run-in-the-key",
        rule="G2",
        file="activities/inventory.py",
        before=_RUN,
        after=_scoped("workflow_run_id"),
        tests=(_ONE_KEY,),
        paired="a second attempt in another run, the first one's answer lost",
    ),
    Mutant(
        name="the-activitys-id-in-the-key",
        rule="G2",
        file="activities/inventory.py",
        before=_RUN,
        after=_scoped("activity_id"),
        tests=(_ONE_KEY,),
        paired="a second round of `perform`, the first one's answer lost",
    ),
    Mutant(
        name="the-attempt-in-the-key",
        rule="G2",
        file="activities/inventory.py",
        before=_RUN,
        after=_scoped("attempt"),
        tests=(_ONE_KEY,),
        paired="Temporal's retry, the first attempt's answer lost",
    ),
    Mutant(
        name="the-payload-in-the-key",
        rule="G2",
        file=_RECORDS,
        before=_DERIVED,
        after='return keys.derive_key(self.origin, f"{self.scope}/{self.fingerprint}", self.name, self.generation)',
        tests=(f"{_RECORDS_TESTS}::test_the_payload_and_the_time_are_never_in_the_key",),
        paired="another quantity under the same name",
    ),
    Mutant(
        name="the-time-in-the-key",
        rule="G2",
        file=_RECORDS,
        before=_DERIVED,
        after='return keys.derive_key(self.origin, f"{self.scope}/{self.decided_at}", self.name, self.generation)',
        tests=(f"{_RECORDS_TESTS}::test_the_payload_and_the_time_are_never_in_the_key",),
        paired="reset or start again: the same effect decided later",
    ),
    Mutant(
        name="no-origin-in-the-key",
        rule="G2",
        file=_KEYS,
        before='"origin": check_text("origin", origin),',
        after='"origin": check_text("origin", origin) and "",',
        tests=(f"{_KEYS_TESTS}::test_each_part_of_an_identity_alone_makes_another_key",),
        paired="two deployments with one provider",
    ),
    Mutant(
        name="no-scope-in-the-key",
        rule="G2",
        file=_KEYS,
        before='"scope": check_text("scope", scope),',
        after='"scope": check_text("scope", scope) and "",',
        tests=(f"{_KEYS_TESTS}::test_each_part_of_an_identity_alone_makes_another_key",),
        paired="two matters with an effect of one name",
    ),
    Mutant(
        name="no-name-in-the-key",
        rule="G2",
        file=_KEYS,
        before='"name": check_text("name", name),',
        after='"name": check_text("name", name) and "",',
        tests=(f"{_KEYS_TESTS}::test_each_part_of_an_identity_alone_makes_another_key",),
        paired="two effects of one matter",
    ),
    Mutant(
        name="no-generation-in-the-key",
        rule="G2",
        file=_KEYS,
        before="-g{check_generation(generation)}",
        after="-g1",
        tests=(f"{_KEYS_TESTS}::test_each_part_of_an_identity_alone_makes_another_key",),
        paired="a redo: it would be answered with the former generation's end",
    ),
    Mutant(
        name="the-journal-compares-no-payload",
        rule="G3",
        file=_STORE,
        before="if not same:",
        after="if False:",
        tests=(
            f"{_STORE_TESTS}::test_another_payload_under_a_key_is_shown_and_not_recorded",
            "tests/activities/test_attempt.py::test_another_payload_under_the_key_is_refused_with_both_shown",
        ),
        paired="a second payload under a used name; the provider would refuse it, so the journal's own words are read",
    ),
    Mutant(
        name="the-journal-compares-no-kind-and-no-path",
        rule="G3",
        file=_STORE,
        before="same = (row.kind, row.path) == (intent.kind, intent.path) and (",
        after="same = (",
        tests=(f"{_STORE_TESTS}::test_an_older_fingerprint_version_is_compared_by_its_kind_and_path_too",),
        paired="a row of an older fingerprint version: elsewhere the fingerprint says it too",
    ),
    Mutant(
        name="an-older-fingerprint-version-passes-everything",
        rule="G3",
        file=_STORE,
        before="else row.request == intent.request",
        after="else True",
        tests=(f"{_STORE_TESTS}::test_an_older_fingerprint_version_is_compared_by_its_bytes",),
        paired="a new build with another way to fingerprint",
    ),
    Mutant(
        name="a-mismatch-shows-one-payload",
        rule="G3",
        file=_STORE,
        before="{text(intent.path)} {intent.request}. ",
        after="{text(intent.path)}. ",
        tests=(f"{_STORE_TESTS}::test_another_payload_under_a_key_is_shown_and_not_recorded",),
        paired="a person who has to decide",
    ),
    Mutant(
        name="path-parameters-left-out-of-our-fingerprint",
        rule="G3",
        file=_KEYS,
        before="dict(path), spoken",
        after="{}, spoken",
        tests=(f"{_KEYS_TESTS}::test_path_parameters_make_the_fingerprint",),
        paired="a release of another reservation under a used key",
    ),
    Mutant(
        name="the-provider-compares-no-payload",
        rule="G3",
        file=_BOOKS,
        before="if known.kind is Kind.VOID or (known.kind, fingerprint) == (call.kind, call.fingerprint):",
        after="if True:",
        tests=(f"{_STOCK_TESTS}::test_a_key_is_for_one_request_only",),
        paired="the provider's half: a journal that has lost its row",
    ),
    Mutant(
        name="path-parameters-left-out-of-the-providers-fingerprint",
        rule="G3",
        file="services/inventory/contract.py",
        before="dict(path), dict(request)",
        after="{}, dict(request)",
        tests=(f"{_STOCK_TESTS}::test_a_reused_key_is_422_on_every_route_and_in_every_state",),
        paired="the provider's half: a release of another reservation under a used key",
    ),
    Mutant(
        name="a-receipt-for-another-payload-settles",
        rule="G3",
        file=_SETTLE,
        before="if receipt.fingerprint != row.fingerprint:",
        after="if False:",
        tests=(f"{_SETTLE_TESTS}::test_a_receipt_that_is_not_the_intents_leaves_it_in_doubt",),
        paired="a key that somebody else has used at the provider",
    ),
    Mutant(
        name="a-receipt-for-another-key-settles",
        rule="G3",
        file=_SETTLE,
        before="if receipt.key != row.key:",
        after="if False:",
        tests=(f"{_SETTLE_TESTS}::test_a_receipt_that_is_not_the_intents_leaves_it_in_doubt",),
        paired="a provider, or something between, that mixes answers up",
    ),
    Mutant(
        name="a-receipt-that-grants-less-settles",
        rule="G3",
        file=_SETTLE,
        before='if receipt.totals("requested") != asked or receipt.totals("granted") != asked:',
        after="if False:",
        tests=(f"{_SETTLE_TESTS}::test_a_receipt_that_is_not_the_intents_leaves_it_in_doubt",),
        paired="a provider that grants a part",
    ),
    Mutant(
        name="two-rows-for-one-key",
        rule="G2",
        file=_JOURNAL_TABLES,
        before='sa.PrimaryKeyConstraint("key", name="pk_effects"),',
        after="",
        tests=(_ONE_ROW,),
        paired="two writers that both found no row (E17); SQLite's one writer hides it, so it is inserted directly",
    ),
    Mutant(
        name="two-keys-for-one-name",
        rule="G2",
        file=_JOURNAL_TABLES,
        before="        sa.UniqueConstraint(\n"
        '            "origin", "scope", "name", "generation", name=op.f("uq_effects_origin_scope_name_generation")\n'
        "        ),\n",
        after="",
        tests=(_ONE_ROW,),
        paired="a build that derives keys in another way (E17), so it is inserted directly",
    ),
    Mutant(
        name="an-insert-that-always-says-it-was-first",
        rule="G2",
        file="services/database.py",
        before="return connection.execute(insert, dict(values)).first() is not None",
        after="return connection.execute(insert, dict(values)).rowcount != 0",
        tests=("tests/services/test_database.py::test_a_row_is_inserted_once_and_only_a_taken_key_is_passed_over",),
        paired="a rival that inserted first",
    ),
    Mutant(
        name="the-provider-takes-a-key-twice",
        rule="G2",
        file="migrations/inventory/versions/inventory_0001_receipts_and_stock.py",
        before='sa.PrimaryKeyConstraint("tenant", "key", name="pk_keys"),',
        after="",
        tests=("tests/services/inventory/test_tables.py::test_the_database_itself_takes_a_key_once",),
        paired="the provider's half (E17): a second claim past our checks; the receipts' own constraint hides it",
    ),
    Mutant(
        name="the-provider-executes-a-taken-key",
        rule="G2",
        file=_BOOKS,
        before="return _expired(known) or _mismatch(known, call) or Repeated(known=known)",
        after="pass",
        tests=(f"{_STOCK_TESTS}::test_32_callers_with_one_key_are_one_effect",),
        paired="the provider's half: the receipt's own unique key turns the second effect into an error, not a replay",
    ),
)
