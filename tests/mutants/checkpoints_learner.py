"""What a restore repeats, and what it must not: the learner's order, the streams, the watermark, the supervisor."""

from typing import Final

from tests.mutants.mutant import Mutant

_LEARNER: Final = "services/checkpoints/learner.py"
_WATERMARK: Final = "services/checkpoints/watermark.py"
_SUPERVISOR: Final = "services/checkpoints/supervisor.py"
_TRAINER: Final = "services/checkpoints/trainer.py"
_RESTORING: Final = "services/checkpoints/restoring.py"
_SINCE: Final = "services/journal/since.py"
_TESTS: Final = "tests/services/checkpoints"
_JOURNAL: Final = "tests/services/journal/test_since.py"

MUTANTS: Final = (
    Mutant(
        name="rows-added-up-by-each-contributor-first",
        rule="G21",
        file=_LEARNER,
        before="""            for value in np.frombuffer(part, "<f8").tolist():
                predicted += value
""",
        after="""            predicted += float(np.frombuffer(part, "<f8").sum())
""",
        tests=(f"{_TESTS}/test_learner.py::test_the_layout_changes_no_bit",),
        paired="another number of contributors: partial sums round differently",
    ),
    Mutant(
        name="epoch-0s-order-in-every-epoch",
        rule="G21",
        file=_LEARNER,
        before="np.random.PCG64([config.order_seed, epoch])",
        after="np.random.PCG64([config.order_seed, 0])",
        tests=(f"{_TESTS}/test_learner.py::test_a_later_epoch_has_its_own_order_also_after_a_restart",),
        paired="a run that has come to epoch 1",
    ),
    Mutant(
        name="a-shuffle-from-the-training-seed",
        rule="G21",
        file=_LEARNER,
        before="np.random.PCG64([config.order_seed, epoch])",
        after="np.random.PCG64([config.seed, epoch])",
        tests=(f"{_TESTS}/test_learner.py::test_the_order_does_not_depend_on_what_training_has_drawn",),
        paired="two seeds of training over one order",
    ),
    Mutant(
        name="an-update-outside-of-its-mark",
        rule="G21",
        file=_LEARNER,
        before="        with self.versions.mutation():\n            gradients",
        after="        with self.versions.mutation():\n            pass\n        if True:\n            gradients",
        tests=(f"{_TESTS}/test_learner.py::test_every_byte_changes_under_an_odd_mark",),
        paired="a look at the mark while the sum is gathered",
    ),
    Mutant(
        name="a-journal-that-is-behind-is-taken",
        rule="G16",
        file=_WATERMARK,
        before="    if newest < kept.number:",
        after="    if newest < 0:",
        tests=(f"{_TESTS}/test_watermark.py::test_an_older_journal_is_behind",),
        paired="a journal put back to a copy from before the cut",
    ),
    Mutant(
        name="another-history-is-taken",
        rule="G16",
        file=_WATERMARK,
        before="    if known.digest != kept.digest:",
        after="    if not known.digest:",
        tests=(f"{_TESTS}/test_watermark.py::test_another_history_up_to_the_kept_seal_is_a_fork",),
        paired="a journal that was rolled back and has as many seals again",
    ),
    Mutant(
        name="another-journal-is-taken",
        rule="G16",
        file=_WATERMARK,
        before="    if now.journal_id != kept.journal_id:",
        after="    if not now.journal_id:",
        tests=(f"{_TESTS}/test_watermark.py::test_another_journal_is_a_fork",),
        paired="the seals of another journal under the same numbers",
    ),
    Mutant(
        name="a-resume-over-unknown-outcomes",
        rule="G16",
        file=_WATERMARK,
        before="    if pending and not allow_pending:",
        after="    if pending and allow_pending:",
        tests=(f"{_TESTS}/test_watermark.py::test_what_was_pending_at_the_cut_has_to_be_settled_first",),
        paired="a key that was pending at the cut and is still",
    ),
    Mutant(
        name="a-resume-that-does-not-look-at-the-journal",
        rule="G16",
        file=_RESTORING,
        before="    return compare(kept, now, allow_pending=terms.allow_pending).document()",
        after='    return {"not_undone": [], "undone": 0, "kept": kept.journal_id}',
        tests=(f"{_TESTS}/test_interruption.py::test_a_restore_beside_an_older_journal_is_refused",),
        paired="a restore beside a journal that is behind",
    ),
    Mutant(
        name="what-was-heard-of-again-is-new",
        rule="G16",
        file=_SINCE,
        before='        if before is not None and before["state"] == EffectState.COMMITTED:',
        after='        if before is not None and before["state"] is None:',
        tests=(f"{_JOURNAL}::test_an_effect_that_was_heard_of_again_was_committed_before",),
        paired="a late report of an effect that was settled before the cut",
    ),
    Mutant(
        name="contributors-that-outlive-their-supervisor",
        rule="G21",
        file=_TRAINER,
        before="    if os.getppid() != supervisor:",
        after="    if os.getppid() == 0:",
        tests=(f"{_TESTS}/test_trainer.py::test_a_contributor_whose_supervisor_is_gone_does_nothing",),
        paired="a supervisor that died before the contributor could ask to die with it",
    ),
    Mutant(
        name="contributors-that-are-not-held",
        rule="G21",
        file=_SUPERVISOR,
        before="all(each.update >= self._hold_after for each in contributors)",
        after="all(each.update > self._hold_after for each in contributors)",
        tests=(f"{_TESTS}/test_supervisor.py::test_contributors_are_held_where_they_are_killed",),
        paired="a kill that is to come right after an update",
    ),
)
