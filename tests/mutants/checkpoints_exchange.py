"""What crosses the store's border as files: exports, imports, and what is said to differ."""

from typing import Final

from tests.mutants.mutant import Mutant

_PACKAGE: Final = "services/checkpoints/"
_TESTS: Final = "tests/services/checkpoints/"

MUTANTS: Final = (
    Mutant(
        name="a-headers-length-is-believed", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="    if length > HEADER_BYTES:\n        _check",
        after="    if length > file.size**9:\n        _check",
        tests=(_TESTS + "test_safetensors.py::test_what_a_header_says_allocates_nothing",),
        paired="a terabyte that is a hole, said to be a header",
    ),
    Mutant(
        name="a-tensor-may-stand-twice", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="            if key in seen:\n",
        after="            if key is seen:\n",
        tests=(_TESTS + "test_safetensors.py::test_a_hostile_file_is_refused_by_name",),
        paired="one name, spelled in two ways",
    ),
    Mutant(
        name="tensors-may-overlap", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="        if each.start != end:\n",
        after="        if each.start > end:\n",
        tests=(_TESTS + "test_safetensors.py::test_a_hostile_file_is_refused_by_name",),
        paired="two tensors of the same bytes",
    ),
    Mutant(
        name="bytes-of-no-tensor-are-passed-over", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="    if end != data_bytes:\n",
        after="    if end > data_bytes:\n",
        tests=(_TESTS + "test_safetensors.py::test_a_hostile_file_is_refused_by_name",),
        paired="a file with something behind its tensors",
    ),
    Mutant(
        name="a-tensors-name-may-be-a-path", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before='any(part in ("", ".", "..") for part in name.split("/"))',
        after="not name",
        tests=(_TESTS + "test_safetensors.py::test_a_hostile_file_is_refused_by_name",),
        paired="../../etc/passwd",
    ),
    Mutant(
        name="another-stores-file-is-only-strange", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="        _check_foreign(file)\n",
        after="",
        tests=(_TESTS + "test_safetensors.py::test_a_hostile_file_is_refused_by_name",),
        paired="a journal export that is offered for import",
    ),
    Mutant(
        name="a-view-is-stored-as-its-memory", rule="G22", file=f"{_PACKAGE}safetensors.py",
        before="array.reshape(-1).view(np.uint8)",
        after='array.ravel(order="K").view(np.uint8)',
        tests=(_TESTS + "test_safetensors.py::test_a_view_is_stored_as_what_it_shows",),
        paired="a transposed array",
    ),
    Mutant(
        name="an-exports-record-is-believed", rule="G22", file=f"{_PACKAGE}exchange.py",
        before="    if sorted(each.tensor for each in items) != sorted(tensors):\n",
        after="    if len(items) > len(tensors) ** 9:\n",
        tests=(_TESTS + "test_exchange.py::test_a_record_that_says_something_else_than_its_file_is_refused",),
        paired="a record that leaves a tensor out",
    ),
    Mutant(
        name="an-export-takes-a-name-that-is-taken", rule="G22", file=f"{_PACKAGE}exchange.py",
        before="if per_contributor or name == target.name]",
        after="if not name]",
        tests=(_TESTS + "test_exchange.py::test_what_is_there_is_never_written_over",),
        paired="a folder with somebody's file",
    ),
    Mutant(
        name="an-import-is-written-as-it-comes", rule="G22", file=f"{_PACKAGE}importing.py",
        before="        if digest.hexdigest() != self.digest:\n",
        after="        if not self.digest:\n",
        tests=(_TESTS + "test_importing.py::test_a_file_that_changes_between_check_and_write_is_not_committed",),
        paired="a file that is written while it is imported",
    ),
    Mutant(
        name="what-was-exported-is-not-compared", rule="G22", file=f"{_PACKAGE}importing.py",
        before="    if held.digest not in (None, digest.hexdigest()):\n",
        after="    if not held:\n",
        tests=(_TESTS + "test_importing.py::test_a_cut_that_is_none_is_refused_by_name_before_the_run_is_touched",),
        paired="a bit that flipped on the way",
    ),
    Mutant(
        name="an-import-asks-no-take-over", rule="G22", file=f"{_PACKAGE}importing.py",
        before="take_it_over=take_over, writer=writer)",
        after="take_it_over=True, writer=writer)",
        tests=(_TESTS + "test_importing.py::test_an_import_is_an_epoch_of_its_own_and_fences_only_where_that_is_said",),
        paired="an import into a run that somebody trains",
    ),
    Mutant(
        name="an-import-touches-the-run-before-it-checks", rule="G22", file=f"{_PACKAGE}importing.py",
        before="        cut, contributions = _checked(described, items)\n",
        after="        Run.open(root, run_id, create=create).close()\n"
        "        cut, contributions = _checked(described, items)\n",
        tests=(_TESTS + "test_importing.py::test_a_cut_that_is_none_is_refused_by_name_before_the_run_is_touched",),
        paired="files that are no cut",
    ),
    Mutant(
        name="an-import-drops-the-watermark", rule="G22", file=f"{_PACKAGE}importing.py",
        before="effects=described.watermark,",
        after="effects=None,",
        tests=(_TESTS + "test_importing.py::test_a_watermark_goes_with_its_checkpoint",),
        paired="a checkpoint that was made beside a journal",
    ),
    Mutant(
        name="a-contributors-file-may-be-missing", rule="G22", file=f"{_PACKAGE}importing.py",
        before="if missing := [name for name in first.world if name not in parts]:",
        after="if missing := [name for name in first.world if not name]:",
        tests=(_TESTS + "test_importing.py::test_files_make_a_checkpoint_all_together_or_not_at_all",),
        paired="two of three files",
    ),
    Mutant(
        name="files-of-two-checkpoints-are-one", rule="G22", file=f"{_PACKAGE}importing.py",
        before="        if (each.manifest, each.contract",
        after="        if not each.world and (each.manifest, each.contract",
        tests=(_TESTS + "test_importing.py::test_files_make_a_checkpoint_all_together_or_not_at_all",),
        paired="a file of the checkpoint before",
    ),
    Mutant(
        name="the-budget-is-not-looked-at", rule="G22", file=f"{_PACKAGE}importing.py",
        before="        if needed > budget_bytes:\n",
        after="        if needed < 0:\n",
        tests=(_TESTS + "test_importing.py::test_more_than_the_budget_is_refused_before_a_byte_is_read",),
        paired="a bomb",
    ),
    Mutant(
        name="a-bool-is-any-byte", rule="G22", file=f"{_PACKAGE}importing.py",
        before="np.frombuffer(piece, np.uint8).max() > 1:",
        after="not piece:",
        tests=(_TESTS + "test_importing.py::test_a_bool_is_0_or_1",),
        paired="a BOOL of 2",
    ),
    Mutant(
        name="another-contract-is-imported", rule="G22", file=f"{_PACKAGE}importing.py",
        before="            check_same_contract(contract, found.manifest.contract_digest)\n",
        after="            pass\n",
        tests=(
            _TESTS + "test_importing.py::test_a_wanted_difference_is_allowed_by_its_name_and_another_contract_never",
        ),
        paired="an export of another run",
    ),
    Mutant(
        name="what-does-not-fit-is-imported", rule="G22", file=f"{_PACKAGE}importing.py",
        before="        if differences:\n",
        after="        if not found:\n",
        tests=(_TESTS + "test_importing.py::test_what_does_not_fit_the_run_is_refused_with_every_difference",),
        paired="another dtype, another shape",
    ),
    Mutant(
        name="a-diff-compares-numbers", rule="G22", file=f"{_PACKAGE}comparing.py",
        before="        differs = (bits[0] != bits[1]).any(axis=1)\n",
        after="        differs = one.reshape(-1) != other.reshape(-1)\n",
        tests=(_TESTS + "test_comparing.py::test_bits_are_compared_and_not_numbers",),
        paired="a NaN, and a minus zero",
    ),
    Mutant(
        name="a-diff-believes-what-it-reads", rule="G22", file=f"{_PACKAGE}comparing.py",
        before="        verify_items(side.run, side.found, [name])\n",
        after="        del side\n",
        tests=(_TESTS + "test_comparing.py::test_nothing_is_said_of_damaged_bytes",),
        paired="a flipped bit in one of the two",
    ),
)  # fmt: skip
