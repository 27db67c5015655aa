"""What a contributor makes of others who are late, stopped, dead or not of its kind, and of what it is given."""

from typing import Final

from tests.mutants.mutant import Mutant

_GROUP: Final = "services/checkpoints/group.py"
_MEETING: Final = "services/checkpoints/meeting.py"
_RESTORING: Final = "services/checkpoints/restoring.py"
_SAVING: Final = "services/checkpoints/saving.py"
_SESSION: Final = "services/checkpoints/session.py"
_WATERMARK: Final = "services/checkpoints/watermark.py"

_MEETING_TEST: Final = "tests/services/checkpoints/test_meeting.py::"
_SAVING_TEST: Final = "tests/services/checkpoints/test_saving.py::"
_SESSION_TEST: Final = "tests/services/checkpoints/test_session.py::"
_RESTORING_TEST: Final = "tests/services/checkpoints/test_restoring.py::"
_WATERMARK_TEST: Final = "tests/services/checkpoints/test_watermark.py::"
_NO_WATERMARK: Final = (
    _RESTORING_TEST + "test_what_is_no_watermark_is_refused_by_all_and_makes_no_checkpoint_a_damaged_one"
)

MUTANTS: Final = (
    Mutant(
        name="a-dead-coordinator-is-waited-for",
        rule="G23",
        file=_GROUP,
        before="            ended = self.gone(COORDINATOR) or over()",
        after="            ended = over()",
        tests=(_MEETING_TEST + "test_who_has_ended_is_not_waited_for",),
        paired="a coordinator that was killed, and deadlines of an hour",
    ),
    Mutant(
        name="a-stopped-process-is-a-dead-one",
        rule="G23",
        file=_MEETING,
        before=" and not self._folders[MEET].is_held(name)",
        after="",
        tests=(_MEETING_TEST + "test_who_has_ended_is_gone_and_who_is_stopped_or_of_another_kernel_is_not",),
        paired="a coordinator that is stopped and goes on",
    ),
    Mutant(
        name="another-kernels-locks-are-believed",
        rule="G23",
        file=_MEETING,
        before="        return self._kernels.get(rank) == self._kernel and",
        after="        return rank in self._kernels and",
        tests=(_MEETING_TEST + "test_who_has_ended_is_gone_and_who_is_stopped_or_of_another_kernel_is_not",),
        paired="a shared file system that keeps each host's locks to itself",
    ),
    Mutant(
        name="a-dead-contributors-capture-is-waited-for",
        rule="G23",
        file=_GROUP,
        before="                if self.gone(rank):",
        after="                if False:",
        tests=(_MEETING_TEST + "test_who_has_ended_is_not_waited_for",),
        paired="a contributor that was killed before its capture",
    ),
    Mutant(
        name="a-dead-contributors-record-is-waited-for",
        rule="G23",
        file=_SAVING,
        before="                if self._group.gone(rank):",
        after="                if False:",
        tests=(_SAVING_TEST + "test_a_contributor_that_has_died_on_this_host_is_named_at_once",),
        paired="a contributor that was killed after the release",
    ),
    Mutant(
        name="a-checkpoint-that-could-not-be-told-has-failed",
        rule="G23",
        file=_SAVING,
        before="        with suppress(OSError, CheckpointError):\n",
        after="        with suppress():\n",
        tests=(_SAVING_TEST + "test_an_outcome_that_cannot_be_told_is_read_from_the_slot",),
        paired="a disk that is full after the commit",
    ),
    Mutant(
        name="a-lost-coordinators-slot-is-not-synced",
        rule="G23",
        file=_SAVING,
        before="            self._run.log.sync()",
        after="            pass",
        tests=(_SAVING_TEST + "test_who_reads_the_slot_of_a_lost_coordinator_makes_it_durable_first",),
        paired="a coordinator that died between the link and the fsync, and a power cut",
    ),
    Mutant(
        name="each-contributors-own-deadlines",
        rule="G23",
        file=_SAVING,
        before="""        seconds = declared["capture_seconds"]""",
        after="        seconds = self._deadlines.capture_seconds",
        tests=(_SAVING_TEST + "test_the_deadlines_are_those_that_the_coordinator_declared",),
        paired="a coordinator with longer deadlines than a contributor",
    ),
    Mutant(
        name="an-unknown-rank-begins",
        rule="G23",
        file=_SESSION,
        before="    if any(heard[name] != word[name] for name in word):",
        after="    if any(name not in heard for name in word):",
        tests=(_SESSION_TEST + "test_a_contributor_beyond_the_coordinators_world_does_not_begin",),
        paired="a contributor that was started for a larger world",
    ),
    Mutant(
        name="a-look-is-forgotten-before-all-have-read-it",
        rule="G23",
        file=_SESSION,
        before="""                words = self._group.gather(MEET, f"stop.{look}", word, seconds=seconds)
""",
        after="""                self._group.forget(MEET, f"go-on.{look - 1}")
                words = self._group.gather(MEET, f"stop.{look}", word, seconds=seconds)
""",
        tests=(_SESSION_TEST + "test_who_comes_late_to_a_look_hears_how_it_ended",),
        paired="a contributor that is late by two looks",
    ),
    Mutant(
        name="a-session-ends-without-a-word",
        rule="G23",
        file=_SESSION,
        before="                self._group.publish(MEET, name, error_body(over))",
        after="                pass",
        tests=(_SESSION_TEST + "test_a_look_tells_all_that_the_session_is_over",),
        paired="a contributor that has not heard of the outcome yet",
    ),
    Mutant(
        name="a-signal-kills-the-last-writer",
        rule="G23",
        file=_SESSION,
        before="""        try:
            if self._save is not None:
                self._save.settle()
""",
        after="""        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)
        try:
            if self._save is not None:
                self._save.settle()
""",
        tests=(_SESSION_TEST + "test_a_signal_while_the_last_save_is_waited_for_ends_no_writer",),
        paired="a stop signal that comes while a session is closed",
    ),
    Mutant(
        name="a-live-array-damages-a-checkpoint",
        rule="G23",
        file=_RESTORING,
        before="            raise differing([str(error)]) from error",
        after="            raise",
        tests=(_RESTORING_TEST + "test_a_live_array_that_no_checkpoint_can_have_is_no_damage",),
        paired="a big-endian array in the state that is resumed",
    ),
    Mutant(
        name="a-watermark-that-is-none-damages-a-checkpoint",
        rule="G16",
        file=_RESTORING,
        before="        now = read_watermark(terms.journal)\n    except ManifestInvalid",
        after="        now = read_watermark(terms.journal)\n    except FileNotFoundError",
        tests=(_NO_WATERMARK,),
        paired="an older checkpoint that carries no watermark: it would be resumed instead",
    ),
    Mutant(
        name="whatever-is-handed-over-is-kept-as-a-watermark",
        rule="G16",
        file=_SESSION,
        before="                read_watermark(watermark)\n",
        after="                dict(watermark)\n",
        tests=(_NO_WATERMARK,),
        paired="a trainer that hands over another document, and a restore that needs it",
    ),
    Mutant(
        name="entries-behind-the-last-seal-do-not-count",
        rule="G16",
        file=_WATERMARK,
        before="    if now.last_entry_id < kept.last_entry_id:",
        after="    if now.last_entry_id < 0:",
        tests=(_WATERMARK_TEST + "test_a_journal_that_lost_entries_behind_its_last_seal_is_behind",),
        paired="a journal put back to a copy that has the same last seal and does not know a key that was pending",
    ),
    Mutant(
        name="a-vote-that-was-withdrawn-counts",
        rule="G23",
        file=_RESTORING,
        before="        if verdict is not None and (withdrawn := self._withdrawn()):",
        after="        if verdict is None and (withdrawn := self._withdrawn()):",
        tests=(_RESTORING_TEST + "test_a_coordinator_that_comes_late_with_its_verdict_swaps_nothing_in_alone",),
        paired="a coordinator that is stopped between the votes and its verdict",
    ),
)
