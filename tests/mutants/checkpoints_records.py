"""What every reader of a checkpoint and its committer enforce on each record, one rule after the other."""

from typing import Final

from tests.mutants.mutant import Mutant

_PACKAGE: Final = "services/checkpoints/"
_TESTS: Final = "tests/services/checkpoints/"
_BREAKS: Final = _TESTS + "test_contribution.py::test_a_record_that_breaks_a_rule_is_refused"
_SPELLING: Final = _TESTS + "test_records.py::test_every_other_spelling_is_refused"
_BY_HAND: Final = _TESTS + "test_records.py::test_a_persons_document_may_have_spaces_and_fractions"

MUTANTS: Final = (
    Mutant(
        name="a-record-of-any-length", rule="G22", file=f"{_PACKAGE}records.py",
        before="    if len(data) > limit:\n",
        after="    if not limit:\n",
        tests=(_TESTS + "test_records.py::test_a_record_longer_than_its_bound_is_not_parsed",),
        paired="a record longer than its bound",
    ),
    Mutant(
        name="all-records-together-of-any-length", rule="G22", file=f"{_PACKAGE}manifest.py",
        before="        room -= each.record_bytes\n",
        after="",
        tests=(_TESTS + "test_manifest.py::test_all_records_together_have_a_bound",),
        paired="many records, each within its bound",
    ),
    Mutant(
        name="a-record-of-any-depth", rule="G22", file=f"{_PACKAGE}records.py",
        before="DEPTH: Final = 32\n",
        after="DEPTH: Final = 10_000\n",
        tests=(_SPELLING,),
        paired="forty lists in one another",
    ),
    Mutant(
        name="a-key-twice-and-the-last-one-counts", rule="G22", file=f"{_PACKAGE}records.py",
        before="    if len(found) != len(pairs):\n",
        after="    if len(found) > len(pairs):\n",
        tests=(_BY_HAND,),
        paired="a contract that a person wrote: no canonical spelling is compared there",
    ),
    Mutant(
        name="a-number-that-is-none", rule="G22", file=f"{_PACKAGE}records.py",
        before=", parse_constant=_no_constant), 0)",
        after="), 0)",
        tests=(_BY_HAND,),
        paired="NaN in a contract that a person wrote",
    ),
    Mutant(
        name="any-spelling-of-a-record", rule="G22", file=f"{_PACKAGE}records.py",
        before="    if not by_hand and spelled != data:\n",
        after="    if not by_hand and not spelled:\n",
        tests=(_SPELLING,),
        paired="a record with a space in it",
    ),
    Mutant(
        name="a-file-of-another-store-is-read", rule="G22", file=f"{_PACKAGE}records.py",
        before='    if form is not None and value.get("format") != form:\n',
        after='    if form is not None and not value.get("format"):\n',
        tests=(_TESTS + "test_records.py::test_another_stores_file_is_refused_by_its_format_name", _BREAKS),
        paired="a journal's export with a true digest",
    ),
    Mutant(
        name="a-record-that-was-changed-is-read", rule="G22", file=f"{_PACKAGE}records.py",
        before="    if stated != (found := record_digest(record)):\n",
        after="    if not (found := record_digest(record)):\n",
        tests=(_TESTS + "test_records.py::test_a_digest_is_of_everything_but_itself",),
        paired="a record whose versions were changed",
    ),
    Mutant(
        name="any-element-type", rule="G22", file=f"{_PACKAGE}dtypes.py",
        before="""    if not isinstance(name, str) or name not in DTYPES:
        raise ManifestInvalid(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]
""",
        after="    return DTYPES.get(str(name), np.dtype(object))\n",
        tests=(_BREAKS, _TESTS + "test_dtypes.py::test_other_names_are_refused"),
        paired="an item of objects",
    ),
    Mutant(
        name="as-many-bytes-as-an-item-says", rule="G22", file=f"{_PACKAGE}contribution.py",
        before="    if type(nbytes) is not int or nbytes != nbytes_of(box, dtype):\n",
        after="    if type(nbytes) is not int:\n",
        tests=(_BREAKS,),
        paired="an item of 39 bytes where its box has 40",
    ),
    Mutant(
        name="sizes-multiplied-without-a-bound", rule="G22", file=f"{_PACKAGE}contribution.py",
        before="    if count_of([length or 1 for length in shape]) * dtype_of(dtype).itemsize > LARGEST_BYTES:\n",
        after="    if not dtype_of(dtype).itemsize:\n",
        tests=(_TESTS + "test_contribution.py::test_sizes_are_multiplied_with_a_bound",),
        paired="a shape of 2^62 by 2^62",
    ),
    Mutant(
        name="bytes-that-two-items-share", rule="G22", file=f"{_PACKAGE}contribution.py",
        before="            if item.offset != end:\n",
        after="            if item.offset < 0:\n",
        tests=(_BREAKS,),
        paired="an item that begins at another place than the next free block",
    ),
    Mutant(
        name="an-item-twice", rule="G22", file=f"{_PACKAGE}contribution.py",
        before="    if len({item.name for item in items}) != len(items):\n",
        after="    if len({item.name for item in items}) > len(items):\n",
        tests=(_BREAKS,),
        paired="one name with two places",
    ),
    Mutant(
        name="a-record-under-another-contributors-name", rule="G22", file=f"{_PACKAGE}contribution.py",
        before="    if found.contributor != contributor:\n",
        after="    if not found.contributor:\n",
        tests=(_BREAKS,),
        paired="contributor 1's record in the place of contributor 0's",
    ),
    Mutant(
        name="a-contributor-stands-twice", rule="G22", file=f"{_PACKAGE}cut.py",
        before="        if contributor in seen:\n",
        after="        if contributor is seen:\n",
        tests=(_TESTS + "test_cut.py::test_a_contributor_stands_once",),
        paired="one id twice in the world",
    ),
    Mutant(
        name="a-value-may-contradict-the-cut", rule="G21", file=f"{_PACKAGE}cut.py",
        before="                if stated != expected or type(stated) is not int:\n",
        after="                if type(stated) is not int:\n",
        tests=(_TESTS + "test_cut.py::test_a_value_agrees_with_the_cut",),
        paired="a cursor of 4 beside a cut of 6",
    ),
    Mutant(
        name="one-folder-for-all-epochs", rule="G22", file=f"{_PACKAGE}layout.py",
        before='    return f"{epoch}-{check_random(save_id)}"\n',
        after='    return f"1-{check_random(save_id)}"\n',
        tests=(_TESTS + "test_layout.py::test_a_saves_folder_tells_its_epoch",),
        paired="an older coordinator's retention beside a newer one's save",
    ),
)  # fmt: skip
