"""What holds the contributors of a checkpoint together: marks, words, deadlines and the one answer to all."""

from typing import Final

from tests.mutants.mutant import Mutant

_CAPTURE: Final = "services/checkpoints/capture.py"
_MEETING: Final = "services/checkpoints/meeting.py"
_RESTORING: Final = "services/checkpoints/restoring.py"
_SAVING: Final = "services/checkpoints/saving.py"
_SESSION: Final = "services/checkpoints/session.py"
_STATE: Final = "services/checkpoints/state.py"

_CAPTURE_TEST: Final = "tests/services/checkpoints/test_capture.py::"
_MEETING_TEST: Final = "tests/services/checkpoints/test_meeting.py::"
_SAVING_TEST: Final = "tests/services/checkpoints/test_saving.py::"
_SESSION_TEST: Final = "tests/services/checkpoints/test_session.py::"
_RESTORING_TEST: Final = "tests/services/checkpoints/test_restoring.py::"
_RACES: Final = _CAPTURE_TEST + "test_a_mutation_between_the_readings_refuses_the_capture"
_TORN: Final = _CAPTURE_TEST + "test_half_an_update_is_refused_by_its_begin_mark"
_LOST: Final = _SAVING_TEST + "test_who_loses_the_coordinator_after_the_release_reads_what_happened"
_ALONE: Final = _RESTORING_TEST + "test_damage_that_one_contributor_alone_sees_moves_all_to_the_older_checkpoint"
MUTANTS: Final = (
    Mutant(
        name="a-mutation-without-a-begin-mark",
        rule="G21",
        file=_STATE,
        before="""                if self._open[source] == 0:
                    self._marks[source] += 1
                self._open[source] += 1
""",
        after="""                if self._open[source] == 0:
                    self._marks[source] -= 1
                    self._marks[source] += 1
                self._open[source] += 1
""",
        tests=(_TORN,),
        paired="half of an array is changed when the capture comes, and the other half after it",
    ),
    Mutant(
        name="an-odd-mark-is-a-mark-like-others",
        rule="G21",
        file=_CAPTURE,
        before="if mark % 2)",
        after="if mark < 0)",
        tests=(_TORN,),
        paired="a mutation that began before the capture and ends after it",
    ),
    Mutant(
        name="marks-are-read-once",
        rule="G21",
        file=_CAPTURE,
        before="""    _compare("source", marks, marks_after)
""",
        after="",
        tests=(_RACES,),
        paired="a source without an item of its own moved: the counters are as they were",
    ),
    Mutant(
        name="what-nobody-marks-is-looked-at-once",
        rule="G21",
        file=_CAPTURE,
        before="if _digest_of_live(items[name].array) != before[name]:",
        after="if _digest_of_live(state.items[name].array) == '':",
        tests=(_RACES,),
        paired="an array changed after its copy and before another's",
    ),
    Mutant(
        name="values-are-not-copied",
        rule="G21",
        file=_CAPTURE,
        before="        values = parse(canonical(state.values))",
        after="        values = dict() if not canonical(state.values) else state.values  # type: ignore[assignment]",
        tests=(
            _CAPTURE_TEST + "test_what_changes_after_the_capture_changes_nothing_in_it_and_the_device_is_waited_for",
        ),
        paired="the trainer goes on while the record is being written",
    ),
    Mutant(
        name="the-device-is-not-waited-for",
        rule="G21",
        file=_CAPTURE,
        before="    state.wait_ready()\n",
        after="",
        tests=(
            _CAPTURE_TEST + "test_what_changes_after_the_capture_changes_nothing_in_it_and_the_device_is_waited_for",
        ),
        paired="work that was asked of a device and is not done",
    ),
    Mutant(
        name="the-writer-reads-the-live-array",
        rule="G21",
        file=_CAPTURE,
        before="        buffer=place,",
        after="        buffer=item.array.reshape(-1).view(np.uint8).data,",
        tests=(
            _SAVING_TEST + "test_whoever_is_late_at_whatever_point_the_captured_bytes_are_committed",
            _SAVING_TEST + "test_a_writer_that_is_held_after_the_release_commits_what_was_captured",
        ),
        paired="an update after the release; every digest and every name is valid",
    ),
    Mutant(
        name="one-folder-for-all-launches",
        rule="G23",
        file=_MEETING,
        before="""run.meet.folder(check_random(launch, "launch"), create=True)""",
        after="""run.meet.folder(check_random("0" * 32, launch), create=True)""",
        tests=(
            _MEETING_TEST + "test_a_word_of_a_dead_launch_is_never_read",
            _SESSION_TEST + "test_a_dead_start_is_never_heard_and_its_checkpoint_is_resumed_by_all",
        ),
        paired="a start whose predecessor died and left its words",
    ),
    Mutant(
        name="a-name-that-is-taken-is-no-error",
        rule="G23",
        file=_MEETING,
        before="        if not published:\n",
        after="        if published is self:\n",
        tests=(_MEETING_TEST + "test_two_processes_of_one_rank_are_found_out",),
        paired="two processes that were given one rank",
    ),
    Mutant(
        name="a-release-without-the-others",
        rule="G23",
        file=_SAVING,
        before="            check_one_cut(words, self._contract)\n",
        after="            check_one_cut({COORDINATOR: words[COORDINATOR]}, self._contract)\n",
        tests=(_SAVING_TEST + "test_a_source_that_is_being_mutated_on_one_contributor_refuses_the_save_for_all",),
        paired="a contributor whose capture was refused",
    ),
    Mutant(
        name="a-lost-coordinator-is-a-lost-checkpoint",
        rule="G23",
        file=_SAVING,
        before="""        if found.save_id == declared["save_id"] and found.manifest is not None:""",
        after="""        if found.save_id == "" and found.manifest is not None:""",
        tests=(_LOST,),
        paired="a coordinator that died after its commit and told nobody",
    ),
    Mutant(
        name="a-free-slot-is-not-committed",
        rule="G23",
        file=_SAVING,
        before="        except FileNotFoundError:\n            raise CommitUnknown(",
        after="        except FileNotFoundError:\n            raise CommitFailed(",
        tests=(_LOST,),
        paired="a coordinator that may still link its record",
    ),
    Mutant(
        name="a-contributor-that-failed-says-nothing",
        rule="G23",
        file=_SAVING,
        before="""            self._tell(declared["place"], f"failed.{self._group.rank}", error_body(told))
""",
        after="",
        tests=(_SAVING_TEST + "test_a_full_disk_fails_the_save_for_all_and_shows_nothing",),
        paired="a disk that is full at one contributor: the others know after the deadline, and not why",
    ),
    Mutant(
        name="a-failure-that-nobody-saw-stays-unseen",
        rule="G23",
        file=_SESSION,
        before="        return unseen\n",
        after="        return None\n",
        tests=(
            _SAVING_TEST
            + "test_an_unseen_failure_is_raised_by_the_next_save_and_the_one_after_it_has_an_id_of_its_own",
        ),
        paired="a trainer that never waits for its saves",
    ),
    Mutant(
        name="a-failure-is-forgotten-on-close",
        rule="G23",
        file=_SESSION,
        before="                if self._save.unseen is not None:",
        after="                if self._save.unseen is None and not self._save.done:",
        tests=(_SAVING_TEST + "test_an_unseen_failure_is_raised_on_close",),
        paired="a trainer that ends after its last save began",
    ),
    Mutant(
        name="a-fenced-session-goes-on",
        rule="G23",
        file=_SESSION,
        before="            if isinstance(ended, OVER):",
        after="            if isinstance(ended, OVER) and ended.args == ():",
        tests=(_SESSION_TEST + "test_a_coordinator_that_was_taken_over_is_told_so_and_its_session_is_over",),
        paired="a trainer that goes on training beside the one that took over",
    ),
    Mutant(
        name="the-coordinator-alone-decides-on-a-stop",
        rule="G23",
        file=_SESSION,
        before="""any(each["stop"] for each in words.values())""",
        after="""words[COORDINATOR]["stop"]""",
        tests=(_SESSION_TEST + "test_a_stop_signal_between_two_looks_stops_all_at_one_update",),
        paired="the signal comes to another contributor",
    ),
    Mutant(
        name="a-look-of-ranks-out-of-step",
        rule="G23",
        file=_SESSION,
        before="""                    if words[rank]["updates"] != updates:""",
        after="""                    if words[rank]["updates"] < 0:""",
        tests=(_SESSION_TEST + "test_a_look_at_different_updates_is_refused_by_both_numbers",),
        paired="a rank that skipped a look",
    ),
    Mutant(
        name="one-contributors-refusal-is-overheard",
        rule="G23",
        file=_RESTORING,
        before="        if not refused:\n",
        after="        refused = refused[:0]\n        if not refused:\n",
        tests=(_ALONE,),
        paired="a damaged byte that one contributor alone reads",
    ),
    Mutant(
        name="a-swap-before-all-have-verified",
        rule="G23",
        file=_RESTORING,
        before="            part = self._read(found, state, terms)\n",
        after="""            part = self._read(found, state, terms)
            state.adopt(arrays=part.arrays, versions=found.manifest.versions, values={}, keep=part.kept)
""",
        tests=(
            _RESTORING_TEST + "test_damage_is_raised_by_all_where_one_is_strict_about_it",
            _RESTORING_TEST + "test_nobody_swaps_in_before_all_have_verified",
        ),
        paired="another contributor that refuses, or dies",
    ),
    Mutant(
        name="what-nobody-takes-nobody-verifies",
        rule="G23",
        file=_RESTORING,
        before="            verify_items(self.run, found, left)\n",
        after="            pass\n",
        tests=(_RESTORING_TEST + "test_items_that_nobody_takes_are_verified_all_the_same",),
        paired="damage in an item that this layout does not read",
    ),
    Mutant(
        name="a-misfit-is-damage",
        rule="G23",
        file=_RESTORING,
        before="FALLS_BACK: Final = (Damaged, Retired)",
        after="FALLS_BACK: Final = (CheckpointError,)",
        tests=(_RESTORING_TEST + "test_a_setting_that_changed_is_refused_by_all_by_name_unless_it_is_allowed",),
        paired="a setting that is another one in every checkpoint",
    ),
    Mutant(
        name="a-resume-without-the-journal",
        rule="G16",
        file=_SESSION,
        before="            beside_journal=True, allow_pending",
        after="            beside_journal=False, allow_pending",
        tests=(_RESTORING_TEST + "test_a_restore_beside_a_journal_needs_its_watermark_and_says_what_it_does_not_undo",),
        paired="a checkpoint with a watermark, and nobody who gives one",
    ),
)
