"""Errors as words, and a wait that ends; the conversations themselves are in test_meeting.py."""

import inspect

import pytest

from services.checkpoints import errors
from services.checkpoints.errors import CheckpointError, CommitFailed, SourceChanged
from services.checkpoints.group import error_body, error_of, missing, until


@pytest.mark.parametrize(
    "kind", [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CheckpointError)]
)
def test_every_error_travels_by_its_name(kind: type[CheckpointError]) -> None:
    """What the coordinator refuses, all refuse with the same name."""
    heard = error_of(error_body(kind("what happened"), who="contributor 2: "))
    assert type(heard) is kind
    assert str(heard) == "contributor 2: what happened"


def test_a_word_without_an_error_has_none_and_an_unknown_one_is_a_failed_commit() -> None:
    """Never silence, and never a class that a word could choose freely."""
    assert error_of({"sequence": 3}) is None
    assert type(error_of({"error": {"type": "SystemExit", "message": "x"}})) is CommitFailed
    assert type(error_of({"error": {"type": "Any", "message": "x"}})) is CommitFailed


def test_a_wait_looks_once_more_at_its_end() -> None:
    """What came with the deadline has come."""
    looks = iter([None, "there"])
    assert until(lambda: next(looks), seconds=10) == "there"
    assert until(lambda: "there", seconds=0) == "there"
    assert until(lambda: None, seconds=0) is None


def test_who_is_missing_is_named() -> None:
    """In the order of the ranks."""
    error = missing({3, 1}, "did not come")
    assert str(error).startswith("Contributor 1, 3 did not come. Nothing was published")
    assert not isinstance(error, SourceChanged)
