"""The watermark: which journal a checkpoint may be restored beside, and what the restore does not undo."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.errors import CheckpointError, Incompatible, JournalBehind, JournalForked, ManifestInvalid
from services.checkpoints.watermark import STATEMENT, Effect, Seal, Watermark, compare, read_watermark

JOURNAL, OTHER = "0" * 32, "1" * 32
RESERVATION = Effect(
    key="cf1-a-g1", scope="train/r1", name="filter@110", receipt_id="receipt-7", reservation_id="reservation-2"
)


def seal(number: int, letter: str = "a") -> Seal:
    """A seal whose digest is one letter."""
    return Seal(number=number, digest=letter * 64)


def kept(last: Seal | None = None, *pending: str) -> Watermark:
    """What a checkpoint keeps."""
    return Watermark(journal_id=JOURNAL, seal=last, at=None, pending=pending, committed_since=())


def now(last: Seal | None, at: Seal | None, *pending: str) -> Watermark:
    """What the journal says now."""
    return Watermark(journal_id=JOURNAL, seal=last, at=at, pending=pending, committed_since=(RESERVATION,))


def test_what_was_committed_after_the_cut_is_named_and_none_of_it_undone() -> None:
    """The report says reservation-2, and 0."""
    report = compare(kept(seal(3)), now(seal(5, "c"), seal(3)))
    assert report.lines() == ("not undone: reservation-2", f"undone: 0 ({STATEMENT})")
    document = report.document()
    assert (document["undone"], document["not_undone"][0]["key"]) == (0, "cf1-a-g1")


def test_a_journal_that_has_not_gone_on_needs_no_seal_to_look_from() -> None:
    """Its last seal is the one that was kept."""
    assert compare(kept(seal(3)), replace(now(seal(3), None), committed_since=())).effects == ()


def test_an_older_journal_is_behind() -> None:
    """A copy from before the cut does not know what was done."""
    with pytest.raises(JournalBehind, match="come to seal 3; this one has come to seal 2"):
        compare(kept(seal(3)), now(seal(2), None))
    with pytest.raises(JournalBehind, match="come to seal 0"):
        compare(kept(seal(3)), now(None, None))


@pytest.mark.parametrize("last", [None, seal(3)])
def test_a_journal_that_lost_entries_behind_its_last_seal_is_behind(last: Seal | None) -> None:
    """Key-1 was pending at the cut, and no seal covers it: a copy that does not know it would begin it anew."""
    cut = replace(kept(last, "key-1"), last_entry_id=9)
    with pytest.raises(JournalBehind, match="come to entry 9; this one has come to entry 8"):
        compare(cut, replace(now(last, last), last_entry_id=8))
    assert compare(cut, replace(now(last, last), last_entry_id=9)).pending == ()


def test_another_journal_is_a_fork() -> None:
    """However far it has come."""
    with pytest.raises(JournalForked, match=OTHER):
        compare(kept(seal(3)), replace(now(seal(5), seal(3)), journal_id=OTHER))


@pytest.mark.parametrize("told", [now(seal(5, "c"), seal(3, "b")), now(seal(3, "b"), None)])
def test_another_history_up_to_the_kept_seal_is_a_fork(told: Watermark) -> None:
    """A journal that was rolled back and has gone on another way has as many seals, and other digests."""
    with pytest.raises(JournalForked, match="its history is another one"):
        compare(kept(seal(3)), told)


@pytest.mark.parametrize("at", [None, seal(2), seal(4)])
def test_a_watermark_that_looks_from_elsewhere_is_refused(at: Seal | None) -> None:
    """What was committed between would be left out, and the history would not be compared."""
    with pytest.raises(Incompatible, match="--at 3"):
        compare(kept(seal(3)), now(seal(5), at))
    with pytest.raises(Incompatible, match="--at 0"):
        compare(kept(None), now(seal(5), seal(5)))


def test_what_was_pending_at_the_cut_has_to_be_settled_first() -> None:
    """Unless it is said otherwise; what became pending later is nobody's matter here."""
    with pytest.raises(Incompatible, match="outcome of key-1 was unknown") as caught:
        compare(kept(seal(3), "key-1", "key-2"), now(seal(3), seal(3), "key-1", "key-3"))
    assert caught.value.differences == ("pending: key-1",)
    report = compare(kept(seal(3), "key-1"), now(seal(3), seal(3), "key-1"), allow_pending=True)
    assert report.lines()[-1] == "still pending: key-1"
    assert compare(kept(seal(3), "key-2"), now(seal(3), seal(3))).pending == ()


def test_what_a_manifest_keeps_is_read_again() -> None:
    """Where the journal stood and what was pending; what was committed is asked of the journal, later."""
    mark = replace(kept(seal(3), "key-1"), last_entry_id=9)
    assert read_watermark(mark.kept()) == mark
    assert read_watermark(kept(None).kept()) == kept(None)


def document() -> dict[str, Any]:
    """What the journal prints."""
    digest = {"digest": "a" * 64}
    return {
        "journal_id": JOURNAL,
        "last_entry_id": 9,
        "seal": {"number": 2, "upto_id": 9, **digest},
        "unsealed": 0,
        "at": {"number": 1, "upto_id": 4, **digest},
        "pending": ["key-1"],
        "committed_since": [{"key": "k", "scope": "s", "name": "n", "receipt_id": None, "reservation_id": "r-1"}],
    }


def test_what_the_journal_prints_is_read() -> None:
    """Members that a checkpoint does not need are left alone."""
    read = read_watermark(document())
    assert (read.seal, read.at, read.last_entry_id) == (seal(2), seal(1), 9)
    assert read.committed_since[0].said == "r-1"


@pytest.mark.parametrize(
    "change",
    [
        {"journal_id": "../x"},
        {"journal_id": None},
        {"seal": 3},
        {"seal": {"number": 0, "digest": "a" * 64}},
        {"seal": {"number": True, "digest": "a" * 64}},
        {"seal": {"number": 1, "digest": "A" * 64}},
        {"last_entry_id": -1},
        {"last_entry_id": "9"},
        {"pending": "key"},
        {"pending": [""]},
        {"pending": [1]},
        {"committed_since": [{}]},
        {"committed_since": [{"key": "k", "scope": "s", "name": "n", "receipt_id": 4}]},
    ],
)
def test_what_no_journal_prints_is_refused(change: dict[str, Any]) -> None:
    """By a named error, before anything stands on it."""
    with pytest.raises(ManifestInvalid):
        read_watermark(document() | change)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["journal_id", "seal", "at", "pending", "number", "digest"]), inner)
        ),
        max_leaves=12,
    )
)
def test_anything_at_all_is_read_or_refused_by_name(raw: object) -> None:
    """Never a traceback of another kind."""
    try:
        read_watermark(raw)
    except CheckpointError as error:
        assert isinstance(error, ManifestInvalid)  # noqa: PT017 - whether it raises is the drawn value's matter
