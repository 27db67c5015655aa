"""Records become rows and entries and come back as they were."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from services.journal import rows
from services.journal.store import Journal
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_mark, make_receipt, make_release, shows
from tests.services.journal.conftest import Clock

moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])).filter(
    lambda moment: 1 < moment.year < 9999
)


@given(moments)
def test_a_timestamp_has_one_form_and_reads_back(moment: datetime) -> None:
    """UTC, microseconds, Z: two writings of one moment are one text, and texts sort as moments do."""
    text = rows.timestamp(moment)
    assert datetime.fromisoformat(text) == moment
    assert rows.timestamp(moment.astimezone(UTC)) == text
    assert len(text) == len("2026-03-01T12:00:00.000000Z")


@given(moments, moments)
def test_timestamps_sort_as_their_moments_do(one: datetime, other: datetime) -> None:
    """Entries can be compared without being parsed."""
    assert (rows.timestamp(one) < rows.timestamp(other)) == (one < other)


@given(st.lists(st.text(), min_size=4, max_size=4))
def test_a_digest_is_that_of_canonical_json(parts: list[str]) -> None:
    """Whatever the text: the standard library writes it as RFC 8785 does."""
    key, kind, body, by = parts
    line = rfc8785.dumps([key, kind, body, rows.timestamp(DECIDED_AT), by])
    assert rows.entry_digest(key, kind, body, DECIDED_AT, by) == hashlib.sha256(line).hexdigest()


def test_every_part_of_an_entry_is_in_its_digest() -> None:
    """Changing any one of them changes it, and no part can flow into its neighbour."""
    parts = ("key", "intent", "{}", DECIDED_AT, "worker")
    digests = {
        rows.entry_digest(*parts),
        rows.entry_digest("keyi", "ntent", "{}", DECIDED_AT, "worker"),
        rows.entry_digest("key", "attempt", "{}", DECIDED_AT, "worker"),
        rows.entry_digest("key", "intent", '{"a":1}', DECIDED_AT, "worker"),
        rows.entry_digest("key", "intent", "{}", DECIDED_AT + timedelta(microseconds=1), "worker"),
        rows.entry_digest("key", "intent", "{}", DECIDED_AT, "worker2"),
    }
    assert len(digests) == 6


def test_an_intent_entry_holds_all_that_the_row_takes_from_it() -> None:
    """The row can be made again from the journal alone."""
    intent = make_release()
    values = rows.new_effect(intent, born_by="attempt", created_at=DECIDED_AT)
    body = rows.intent_body(intent, "attempt")
    assert json.loads(values["path"]) == body["path"] == intent.path
    assert set(values) - set(body) == {
        "key",
        "given_up",
        "alarmed",
        "state",
        "version",
        "attempts",
        "created_at",
        "accepted",
    }
    assert json.loads(rows.text(body)) == body


def test_a_row_without_a_mark_has_the_deadline_that_the_first_would_carry(journal: Journal) -> None:
    """Its decision and the send window."""
    row = journal.own(make_intent())
    assert (row.deadline, row.attempts) == (DECIDED_AT + WINDOW, 0)


def test_an_effect_reads_back_as_it_was_written(journal: Journal, clock: Clock) -> None:
    """Every member, with times aware and to the microsecond."""
    clock.now = datetime(2026, 3, 1, 13, 0, 0, 123456, tzinfo=UTC)
    intent = replace(make_intent(generation=3, scope="Störung ☃"), first_run_id="run-7")
    journal.begin(intent, make_mark("attempt-1"))
    journal.observe(intent.key, shows(make_receipt(intent)))
    row = journal.effect(intent.key)
    assert row is not None
    for member in ("key", "origin", "scope", "name", "generation", "kind", "provider", "path", "request", "supersedes"):
        assert getattr(row, member) == getattr(intent, member)
    assert (row.workflow_id, row.workflow_type, row.first_run_id) == (intent.scope, "Incident", "run-7")
    assert row.created_at == row.settled_at == clock.now
    assert row.created_at.tzinfo is UTC
    assert row.receipt == make_receipt(intent)
