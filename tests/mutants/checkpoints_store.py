"""What keeps a checkpoint whole: the cut's checks, the log's slots, the order of a commit, reading and retention."""

from typing import Final

from tests.mutants.mutant import Mutant

_PACKAGE: Final = "services/checkpoints/"
_TESTS: Final = "tests/services/checkpoints/"
_OF_THE_CUT: Final = frozenset({"cut", "boxes", "contract"})


def _mutant(*texts: str) -> Mutant:
    """One guard of the store; tests as `file::test`, without `test_` and folder, separated by spaces."""
    name, file, before, after, tests, paired = texts
    named = (each.partition("::") for each in tests.split())
    return Mutant(
        name=name, rule="G21" if file in _OF_THE_CUT else "G22", file=f"{_PACKAGE}{file}.py",
        before=before, after=after,
        tests=tuple(f"{_TESTS}test_{module}.py::test_{test}" for module, _, test in named), paired=paired,
    )  # fmt: skip


MUTANTS: Final = (
    _mutant(
        "the-first-contributors-update-is-taken-for-all", "cut",
        "            elif shared.setdefault(name, value) != value:",
        "            elif shared.setdefault(name, value) != value and name not in shared:",
        "commit::one_rank_that_is_an_update_behind_refuses_the_commit "
        "commit::updates_that_agree_modulo_eight_are_no_cut",
        "contributors at different updates",
    ),
    _mutant(
        "positions-compared-modulo-eight", "cut",
        "            elif shared.setdefault(name, value) != value:",
        "            elif (shared.setdefault(name, value) - value) % 8:",
        "commit::updates_that_agree_modulo_eight_are_no_cut cut::positions_are_compared_and_not_residues",
        "updates 2 and 10",
    ),
    _mutant(
        "a-relation-that-is-false-passes", "cut",
        "        if not relation.value(names):",
        "        if False and not relation.value(names):",
        "commit::a_cursor_captured_before_it_advanced_refuses_the_commit "
        "commit::a_scheduler_ahead_of_its_updates_refuses_the_commit",
        "a cursor that was captured before it advanced",
    ),
    _mutant(
        "replicas-are-not-compared", "cut",
        "(item.dtype, item.global_shape, item.digest) != (example.dtype, example.global_shape, example.digest):",
        "(item.dtype, item.global_shape) != (example.dtype, example.global_shape):",
        "commit::ranks_that_hold_one_name_differently_are_kept_or_refused_as_declared "
        "cut::replicas_are_equal_or_refused",
        "one name, two values",
    ),
    _mutant(
        "work-in-flight-is-forgotten", "cut",
        "        if count and (role is None or not role.required):",
        "        if count and role is not None and not role.required:",
        "cut::work_in_flight_is_drained_or_represented",
        "gradients of an open window that nobody carries",
    ),
    _mutant(
        "a-full-checkpoint-may-lack-what-is-required", "cut",
        '    if kind == "full" and missing:',
        '    if kind == "full" and missing and not present:',
        "commit::a_role_that_was_dropped_refuses_the_commit cut::a_cut_without_its_cursor_is_no_full_one",
        "masters that were dropped",
    ),
    _mutant(
        "non-finite-is-saved", "cut",
        "            if role.refuses_non_finite and not item.finite:",
        "            if False and not item.finite:",
        "cut::one_shard_that_does_not_fit_the_others_refuses_the_cut",
        "an infinity in a moment",
    ),
    _mutant(
        "overlaps-and-gaps-of-one-size-cancel", "boxes",
        "    wrong = sorted(corner for corner, count in corners.items() if count)",
        "    wrong = sorted(corner for corner, count in corners.items() if count and sum(\n"
        "        count_of(shape_of(box)) for box in boxes) != count_of(shape))",
        "boxes::a_gap_and_an_overlap_of_one_size_do_not_cancel",
        "two boxes that overlap beside a gap",
    ),
    _mutant(
        "a-slot-is-skipped-when-it-is-taken", "log",
        "    slot = epoch.slot + 1\n    body",
        "    slot = last_slot(run) + 1\n    body",
        "log::two_jobs_save_the_same_slot_and_one_has_it "
        "log::opens_and_commits_race_and_the_log_has_no_gap",
        "another coordinator opened meanwhile",
    ),
    _mutant(
        "whose-slot-it-is-is-not-read-back", "log",
        '    if found.kind != "commit" or found.save_id != save_id:',
        "    if False:",
        "log::a_coordinator_that_slept_before_its_link_is_fenced log::two_jobs_save_the_same_slot_and_one_has_it",
        "another coordinator has the slot",
    ),
    _mutant(
        "a-failed-fsync-of-the-log-is-tried-again", "log",
        """    except OSError as error:
        raise CommitUnknown(
            f"commit {slot}""",
        """    except OSError as error:
        epoch.slot = slot
        return slot
        raise CommitUnknown(
            f"commit {slot}""",
        "log::after_a_failed_fsync_of_the_log_nothing_is_acknowledged",
        "fsync of the log fails after the link",
    ),
    _mutant(
        "an-opened-log-is-not-synced", "log",
        "                _sync_log(run)\n                return Epoch",
        "                return Epoch",
        "log::after_a_failed_fsync_of_the_log_nothing_is_acknowledged",
        "a predecessor that does not know whether its commit is durable",
    ),
    _mutant(
        "a-missing-slot-is-not-noticed", "log",
        "    check_no_gap(run)\n",
        "",
        "reading::a_gap_in_the_log_is_reported",
        "a slot that somebody removed",
    ),
    _mutant(
        "the-record-is-linked-before-its-bytes-are-durable", "fs",
        """            with _mutation(f"fsync {self.path}/{name}"):
                _sync(descriptor)
        except BaseException:""",
        """        except BaseException:""",
        "contribution::the_record_is_published_after_the_bytes_are_durable",
        "the trace of a save",
    ),
    _mutant(
        "the-folders-of-a-save-are-not-synced", "commit",
        "        folder.sync()\n        run.data.sync()\n",
        "",
        "commit::the_order_of_a_commit_is_the_guarantee",
        "the trace of a commit",
    ),
    _mutant(
        "the-commit-record-precedes-its-manifest", "commit",
        """        if not folder.publish(FILE, canonical(raw)):
            raise""",
        """        append_commit(run, epoch, save_id=intent.save_id, manifest=manifest.digest)
        epoch.slot -= 1
        if not folder.publish(FILE, canonical(raw)):
            raise""",
        "commit::wherever_a_save_is_killed_the_old_or_the_new_checkpoint_is_there "
        "commit::the_order_of_a_commit_is_the_guarantee",
        "a death between the record and the manifest",
    ),
    _mutant(
        "links-are-followed", "fs",
        "_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC",
        "_SAFE: Final = os.O_NONBLOCK | os.O_CLOEXEC",
        "fs::only_a_regular_file_is_read fs::a_link_is_no_folder layout::a_linked_folder_is_refused",
        "a link to a file outside",
    ),
    _mutant(
        "a-data-file-is-written-over", "fs",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE | flags",
        "os.O_WRONLY | os.O_CREAT | _SAFE | flags",
        "fs::a_data_file_is_never_written_over",
        "a second process with one id",
    ),
    _mutant(
        "an-item-is-handed-out-unverified", "reading",
        "    if digest_of(raw.data) != item.digest:",
        "    if False:",
        "reading::a_flipped_bit_is_found_before_anything_is_handed_out",
        "one flipped bit",
    ),
    _mutant(
        "a-damaged-checkpoint-is-passed-over-silently", "reading",
        "            skipped.append(Skipped(sequence=sequence, reason=_reason(known)))\n",
        "",
        "reading::a_damaged_newest_checkpoint_is_passed_over_and_said reading::weights_alone_do_not_resume",
        "a truncated newest file",
    ),
    _mutant(
        "sizes-are-not-looked-at", "manifest",
        "            if file.size != each.data_bytes:",
        "            if False:",
        "reading::a_damaged_newest_checkpoint_is_passed_over_and_said",
        "a truncated newest file",
    ),
    _mutant(
        "a-record-of-another-save-is-taken", "manifest",
        "        if each.save_id != save_id:",
        "        if False:",
        "manifest::a_record_of_an_older_save_is_not_taken_for_a_newer",
        "a record spliced from an older save; its digest differs as well, and the name of the error tells",
    ),
    _mutant(
        "what-a-manifest-says-is-believed", "manifest",
        "    if canonical(said) != canonical(made):",
        "    if False:",
        "manifest::one_member_changed_is_refused_with_true_digests",
        "a manifest with true digests and another number",
    ),
    _mutant(
        "a-record-without-a-digest-is-read", "records",
        '    stated = check_digest(record.get("digest"), "the record\'s digest")\n',
        '    record.setdefault("digest", record_digest(record))\n'
        '    stated = check_digest(record.get("digest"), "the record\'s digest")\n',
        "records::a_digest_is_of_everything_but_itself manifest::a_manifest_without_its_digest_is_refused",
        "a record whose digest was left out",
    ),
    _mutant(
        "a-mark-is-taken-for-damage", "reading",
        """    if is_retired(run, sequence):
        return _retired(run, sequence)
    match error""",
        """    match error""",
        "reading::a_mark_means_look_again_and_not_damage retention::a_reader_that_has_it_open_is_told_to_look_again",
        "a checkpoint removed while it is read",
    ),
    _mutant(
        "an-older-coordinator-prunes", "retention",
        "    if newest is None or newest.epoch != epoch.number:",
        "    if newest is None:",
        "retention::an_older_coordinator_removes_nothing "
        "retention::a_save_that_begins_while_retention_looks_is_not_touched",
        "a new coordinator has the run",
    ),
    _mutant(
        "a-live-save-is-taken-for-abandoned", "retention",
        " or made_in >= epoch.number or not run.data.has(name):",
        " or not run.data.has(name):",
        "retention::a_live_save_of_ones_own_epoch_is_not_abandoned",
        "a save that is not committed yet",
    ),
    _mutant(
        "a-checkpoint-counts-unread", "retention",
        "                verify_items(run, found)\n",
        "",
        "retention::a_damaged_checkpoint_does_not_count",
        "the newest has a flipped bit",
    ),
    _mutant(
        "what-does-not-count-goes-although-it-is-newer", "retention",
        "    oldest = sorted(kept)[-keep] if len(kept) >= keep else 0",
        "    oldest = sorted(kept)[0] + 9 if kept else 0",
        "retention::weights_alone_neither_count_nor_go_before_what_counts",
        "the newest is weights only",
    ),
    _mutant(
        "no-grace", "retention",
        "now - _marked_at(run, name) < grace_seconds or _unmark_pinned",
        "_unmark_pinned",
        "retention::the_newest_are_kept_and_the_others_go_after_a_mark_and_a_grace",
        "a reader that chose it just before",
    ),
    _mutant(
        "take-over-is-not-asked-for", "retention",
        "    if newest is not None and newest.writer != writer and not take_it_over:",
        "    if False:",
        "retention::what_would_fence_a_trainer_is_said_first",
        "a trainer that lives",
    ),
    _mutant(
        "differences-one-at-a-time", "fit",
        "    left = tuple(text for name, text in differences if name not in overrides)",
        "    left = tuple(text for name, text in differences if name not in overrides)[:1]",
        "fit::all_differences_stand_in_one_error",
        "shapes, dtypes, names and settings that differ",
    ),
    _mutant(
        "another-layout-drops-a-contributors-own", "fit",
        "    if own and not same and layout_policy != FRESH:",
        "    if False:",
        "fit::a_contributors_own_refuses_another_layout",
        "two contributors restore what three saved",
    ),
    _mutant(
        "a-link-whose-answer-was-lost-is-anothers", "fs",
        "            if self._same(temporary, name):",
        "            if False:",
        "fs::a_link_whose_answer_was_lost_is_ours",
        "a link that was made and answered EEXIST, then EIO",
    ),
    _mutant(
        "a-failed-write-keeps-its-room", "fs",
        "            self.remove(name)  # on a full disk",
        "            pass  # on a full disk",
        "fs::what_could_not_be_written_gives_its_room_back",
        "a data file that a full disk ended",
    ),
    _mutant(
        "what-is-marked-never-counts-again", "retention",
        '        if waits and not run.data.has(save_folder(record.epoch, record.save_id or "")):',
        "        if waits:",
        "retention::what_waits_for_its_end_comes_back_when_too_few_count",
        "the newest two are damaged after the others were marked",
    ),
    _mutant(
        "what-is-marked-goes-while-too-few-count", "retention",
        "    going = [each for each in commits if each.sequence < oldest]",
        "    going = list(commits)",
        "retention::nothing_that_is_marked_goes_while_too_few_count",
        "one whole checkpoint is left, and weights that were marked",
    ),
    _mutant(
        "what-an-unreadable-record-names-is-abandoned", "retention",
        "complete=not unread,",
        "complete=True,",
        "retention::what_a_record_names_that_cannot_be_read_is_not_abandoned",
        "a flipped bit in the log",
    ),
    _mutant(
        "a-fenced-coordinator-marks", "retention",
        "    check_newest(run, epoch)  # reading back",
        "    # reading back",
        "retention::a_mark_is_not_made_for_a_later_coordinators_run",
        "another resumed while it read back",
    ),
    _mutant(
        "a-command-fences-who-came-meanwhile", "retention",
        "after=newest.sequence if newest is not None else 0)",
        "after=None)",
        "retention::a_trainer_that_comes_while_a_command_looks_is_not_fenced",
        "a trainer opens between the look and the link",
    ),
    _mutant(
        "a-full-disk-stops-removal", "retention",
        "        failure = error  # a full disk",
        "        raise  # a full disk",
        "retention::on_a_full_disk_what_was_marked_goes",
        "no room for a mark",
    ),
    _mutant(
        "a-pin-takes-anothers-away", "retention",
        "        if mine:  # another's pin",
        "        if True:  # another's pin",
        "retention::a_pin_takes_no_other_pin_away",
        "two pins and a mark between them",
    ),
    _mutant(
        "the-living-launchs-words-are-removed", "retention",
        "epochs.get(name, epoch.number) < epoch.number and",
        "epochs.get(name, epoch.number) <= epoch.number and",
        "retention::the_words_of_dead_launches_and_unlinked_files_go_when_nobody_touches_them",
        "the newest launch has said nothing for long",
    ),
    _mutant(
        "a-large-item-is-not-compared", "reading",
        "    if digest.hexdigest() != item.digest:",
        "    if False:",
        "reading::a_flipped_bit_is_found_before_anything_is_handed_out retention::a_damaged_checkpoint_does_not_count "
        "reading::a_large_item_is_verified_in_little_memory",
        "one flipped bit, behind many pieces",
    ),
    _mutant(
        "a-record-is-believed-to-be-finite", "reading",
        "    if finite != item.finite:",
        "    if False:",
        "reading::whether_an_item_is_finite_is_seen_in_its_bytes",
        "NaN that is recorded as finite, with true digests",
    ),
    _mutant(
        "replicas-may-disagree-whether-they-are-finite", "cut",
        "            if item.finite != example.finite:",
        "            if False:",
        "cut::replicas_are_equal_or_refused",
        "the same bytes, finite to one contributor alone",
    ),
    _mutant(
        "a-failed-saves-bytes-stay", "saving",
        "            if written and not named:\n",
        "            if False:\n",
        "saving::a_failed_save_gives_its_room_back_where_nothing_names_its_bytes",
        "a disk that is full to one contributor",
    ),
    _mutant(
        "bytes-go-that-a-record-may-name", "saving",
        "            named = True  #",
        "            named = False  #",
        "saving::where_a_record_may_name_the_bytes_of_a_failed_save_they_stay",
        "an fsync that fails after the link",
    ),
    _mutant(
        "only-a-missing-file-is-named", "reading",
        "    except (OSError, CheckpointError) as error:\n        raise _seen(run, sequence,",
        "    except (FileNotFoundError, CheckpointError) as error:\n        raise _seen(run, sequence,",
        "reading::what_may_not_be_read_is_named",
        "a manifest that may not be read",
    ),
    _mutant(
        "a-linked-contract-is-believed-durable", "manifest",
        "    run.contracts.sync()  # also where",
        "    # also where",
        "commit::a_contract_that_a_dead_coordinator_linked_is_made_durable_and_read_back",
        "its coordinator died between link and fsync",
    ),
    _mutant(
        "the-committer-does-not-read-its-contract", "manifest",
        "    read_contract(run, contract.digest)\n",
        "",
        "commit::a_contract_that_a_dead_coordinator_linked_is_made_durable_and_read_back",
        "another file has the contract's name",
    ),
    _mutant(
        "an-empty-array-may-have-any-other-length", "contribution",
        "count_of([length or 1 for length in shape])",
        "count_of(shape)",
        "contribution::an_array_that_cannot_be_is_not_recorded",
        "no rows of more columns than numpy multiplies",
    ),
    _mutant(
        "a-value-carries-no-versions", "cut",
        "        for role in roles_of(each):",
        "        for role in {item.role for item in each.items}:",
        "cut::a_role_that_is_a_value_carries_its_versions_too",
        "a cursor as a number",
    ),
    _mutant(
        "a-constant-has-any-length", "contract",
        " or abs(value) > LARGEST or",
        " or",
        "contract::what_a_contract_cannot_say_is_refused",
        "a product that would never end",
    ),
    _mutant(
        "a-log-record-has-any-length", "log",
        "run.log.read(slot_name(sequence), SMALL_BYTES)",
        "run.log.read(slot_name(sequence), 64 << 20)",
        "reading::what_a_damaged_record_holds_is_not_passed_on",
        "a record that somebody made long",
    ),
)  # fmt: skip
