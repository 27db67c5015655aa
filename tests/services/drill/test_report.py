"""The report's arithmetic against hand-made histories, and the gate."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.drill.report import (
    KILL_HEADER,
    Happened,
    Kill,
    Planned,
    Report,
    Story,
    TemporalKill,
    kill_line,
    matched_by_receipt,
    report,
    tell_story,
    temporal_kill_lines,
    totals,
    verdict,
)
from services.drill.worst_day import Act, tell_acts
from services.effects.keys import derive_key
from services.effects.records import EffectRow
from services.effects.states import EffectState
from services.journal.rows import Entry
from services.reconciliation.findings import Finding, Rule
from services.reconciliation.findings import Report as Audit

NOW = datetime(2026, 11, 30, 8, 15, tzinfo=UTC)
COMMITTED, REJECTED, PENDING = EffectState.COMMITTED, EffectState.REJECTED, EffectState.PENDING

STORY = Story(
    incident_id="INC-2041",
    approved_by="Ada",
    key=derive_key("demo", "INC-2041", "reserve-filter", 1),
    sku="FILTER-A",
    quantity=2,
    reservation_id="reservation-1",
    pid=4_194_304,
    units_before=10,
    units_while_dead=8,
    units_after_restart=8,
    answer="committed",
    matched_receipt_id="receipt-9",
    rewound_state="pending",
    found_receipt_id="receipt-9",
    units_after_rewind=8,
    attempts=1,
)
PLANNED = Planned(incidents=3, kills=1, temporal_kills=1, lost_responses=1, delayed_requests=1, rejected=1)
KILL = Kill(key=STORY.key, pid=4_194_304, receipt_id="receipt-999", journal_state="pending", settled_seconds=1.25)
TEMPORAL_KILL = TemporalKill(pid=4_194_303, pending=6, receipts=6, answers_seconds=0.61, settled_seconds=12.87)
ACT = Act(
    name="zombie",
    key="cf1-zombie",
    told=(("worker 4194304 is frozen over its request of INC-9002", "10 -> 8"),),
    unfulfilled=(),
    late_packets={},
)
HAPPENED = Happened(
    ended=3,
    kills=(KILL,),
    temporal_kills=(TEMPORAL_KILL,),
    lost_responses=1,
    delayed_requests=1,
    late_packets={"cf1-delayed": 201},
    story=STORY,
    worst_day=(ACT,),
    seconds={"incidents": 1.0},
)
CLEAN = Audit(effects=4, receipts=4, findings=())


def row(key: str, state: EffectState) -> EffectRow:
    """An effect of the journal."""
    return EffectRow(
        key=key,
        origin="demo",
        scope="INC-1",
        name=key,
        generation=1,
        kind="inventory.reserve",
        provider="inventory",
        path={},
        request="{}",
        fingerprint="0" * 64,
        fingerprint_version="cf-fp1",
        supersedes=(),
        decided_at=NOW,
        deadline=NOW + timedelta(days=1),
        born_by="attempt",
        given_up=False,
        alarmed=False,
        state=state,
        version=3,
        attempts=1,
        workflow_id="INC-1",
        workflow_type="Incident",
        first_run_id="run-1",
        created_at=NOW,
        settled_at=NOW if state.terminal else None,
    )


def history(*lines: str) -> list[Entry]:
    """Entries of one key: `attempt`, or what an observation came from and left, as `send:committed`."""
    entries = []
    for number, line in enumerate(("intent", *lines)):
        source, colon, state = line.partition(":")
        body: dict[str, Any] = {"source": source, "state": state} if colon else {}
        kind = "observation" if colon else line
        entries.append(
            Entry(id=number, key="k", kind=kind, body=body, recorded_at=NOW, recorded_by="worker", digest="")
        )
    return entries


ROWS = [row("plain", COMMITTED), row("killed", COMMITTED), row("late", COMMITTED), row("refused", REJECTED)]
ENTRIES = {
    "plain": history("attempt", "send:committed"),
    "killed": history("attempt", "look_up:committed"),
    "late": history("attempt", "send:pending", "look_up:pending", "attempt", "send:committed"),
    "refused": history("attempt", "send:rejected"),
}


def count(happened: Happened = HAPPENED, audit: Audit = CLEAN, planned: Planned = PLANNED) -> Report:
    """The report of the small history above, but for what is given."""
    return report(planned, happened, ROWS, ENTRIES, audit)


def test_each_number_is_counted_from_what_is_on_record() -> None:
    """Attempts are marks; what was matched is told by marks and by where the settling observation came from."""
    document = count().document()
    assert {name: document[name] for name in ("incidents", "effects", "attempts", "kills")} == {
        "incidents": 3,
        "effects": 4,
        "attempts": 5,
        "kills": 1,
    }
    assert (document["matched_by_receipt"], document["rejected"]) == (1, 1)
    assert (document["lost_responses"], document["delayed_requests"]) == (1, 1)
    assert (document["doubled"], document["lost"], document["unresolved"]) == (0, 0, 0)
    assert document["stock_conserved"] is True
    assert document["kill_to_settled_seconds_median"] == 1.25
    assert document["kill_proofs"] == [
        {
            "key": STORY.key,
            "pid": 4_194_304,
            "receipt_id": "receipt-999",
            "journal_state": "pending",
            "settled_seconds": 1.25,
        }
    ]
    assert (document["temporal_kills"], document["temporal_kill_to_settled_seconds"]) == (1, 12.87)
    assert document["temporal_kill_proofs"] == [
        {"pid": 4_194_303, "pending": 6, "receipts": 6, "answers_seconds": 0.61, "settled_seconds": 12.87}
    ]
    assert (document["passed"], document["failures"]) == (True, [])


@pytest.mark.parametrize(
    ("state", "lines", "matched"),
    [
        (COMMITTED, ("attempt", "look_up:committed"), True),
        (COMMITTED, ("attempt", "send:pending", "look_up:committed"), True),
        (REJECTED, ("attempt", "look_up:rejected"), True),
        (COMMITTED, ("attempt", "send:committed"), False),
        (COMMITTED, ("attempt", "send:pending", "look_up:pending", "attempt", "look_up:committed"), False),
        (COMMITTED, ("look_up:committed",), False),
        (EffectState.VOIDED, ("attempt", "look_up:pending", "void:voided"), False),
        (PENDING, ("attempt", "look_up:pending"), False),
        (COMMITTED, ("attempt", "send:committed", "look_up:committed"), False),
    ],
)
def test_matched_by_receipt_is_one_send_settled_by_a_look_up(
    state: EffectState, lines: tuple[str, ...], matched: bool
) -> None:
    """Neither a second send, nor an answer heard on the send, nor a void, nor an open end counts."""
    assert matched_by_receipt(row("k", state), history(*lines)) is matched


def test_the_median_is_over_all_kills() -> None:
    """The story's kill too, which waits for a worker to start."""
    kills = [replace(KILL, settled_seconds=seconds) for seconds in (0.4, 3.0, 1.5)]
    counted = count(replace(HAPPENED, kills=kills), planned=replace(PLANNED, kills=3))
    assert counted.kill_to_settled_seconds_median == 1.5
    assert counted.passed


@pytest.mark.parametrize(
    "missing",
    [
        replace(HAPPENED, ended=2),
        replace(HAPPENED, kills=()),
        replace(HAPPENED, temporal_kills=()),
        replace(HAPPENED, temporal_kills=(replace(TEMPORAL_KILL, pending=0, receipts=0),)),
        replace(HAPPENED, temporal_kills=(replace(TEMPORAL_KILL, receipts=5),)),
        replace(HAPPENED, lost_responses=0),
        replace(HAPPENED, delayed_requests=0),
        replace(HAPPENED, kills=(replace(KILL, receipt_id=""),)),
        replace(HAPPENED, kills=(replace(KILL, journal_state="committed"),)),
        replace(HAPPENED, late_packets={}),
        replace(HAPPENED, late_packets={"cf1-delayed": 500}),
        replace(HAPPENED, late_packets={"cf1-delayed": None}),
    ],
)
def test_a_fault_that_did_not_fire_or_prove_anything_fails_the_run(missing: Happened) -> None:
    """The vacuity gate: a run that proves nothing is a failed run."""
    assert not count(missing).passed


def test_an_end_that_did_not_come_fails_the_run() -> None:
    """As many rejections as the incidents ask for."""
    assert not count(planned=replace(PLANNED, rejected=2)).passed


@pytest.mark.parametrize("rule", list(Rule))
def test_whatever_the_audit_finds_fails_the_run(rule: Rule) -> None:
    """Not only what has a number of its own."""
    finding = Finding(rule=rule, key="k", journal="this", provider="that")
    counted = count(audit=Audit(effects=4, receipts=4, findings=(finding,)))
    assert not counted.passed
    assert (counted.doubled, counted.lost, counted.unresolved) == (
        int(rule is Rule.DOUBLED),
        int(rule is Rule.LOST),
        int(rule is Rule.UNRESOLVED),
    )
    assert counted.stock_conserved is (rule is not Rule.STOCK)
    assert any(str(rule) in line for line in verdict(counted))


@pytest.mark.parametrize(
    "change",
    [
        {"approved_by": ""},
        {"units_while_dead": 10},
        {"units_after_restart": 6},
        {"units_after_rewind": 6},
        {"answer": "rejected"},
        {"rewound_state": "committed"},
        {"found_receipt_id": "receipt-10"},
        {"attempts": 2},
    ],
)
def test_a_story_that_went_otherwise_fails_the_run(change: dict[str, Any]) -> None:
    """What is told must be what happened."""
    assert STORY.holds
    story = replace(STORY, **change)
    assert not story.holds
    assert not count(replace(HAPPENED, story=story)).passed


def test_what_people_read_fits_80_columns_and_holds_the_numbers() -> None:
    """With the longest pid and a long receipt."""
    lines = [KILL_HEADER, kill_line(KILL), *temporal_kill_lines(TEMPORAL_KILL), *tell_story(STORY), *verdict(count())]
    lines += [f"{text}  {number}" for text, number in totals(count())]
    assert max(len(line) for line in lines) <= 80
    assert kill_line(KILL).split() == ["4194304", STORY.key, "receipt-999", "pending", "1.25", "s"]
    assert kill_line(KILL).index(STORY.key) == KILL_HEADER.index("key")
    assert kill_line(KILL).index("1.25") == KILL_HEADER.index("settled")
    told = "\n".join(tell_story(STORY))
    assert all(words in told for words in ("10 -> 8", "8, not 6", "Ada approved", "reservation-1", "4194304 is killed"))
    assert verdict(count())[-1] == "Passed: nothing doubled, lost or left open; every planned fault fired."


def test_an_act_that_did_not_go_as_it_is_told_fails_the_run_and_says_how() -> None:
    """By its name and its key."""
    act = replace(ACT, unfulfilled=("its units are not back",))
    counted = count(replace(HAPPENED, worst_day=(act,)))
    assert "the act zombie of cf1-zombie: its units are not back" in counted.failures
    assert counted.document()["worst_day"][0]["unfulfilled"] == ("its units are not back",)


def test_the_acts_are_told_in_lines_that_fit() -> None:
    """80 columns, with what was available on the right."""
    assert tell_acts([ACT])[-1] == f"{ACT.told[0][0]:<66}  {'10 -> 8':>12}"
    assert all(len(line) <= 80 for line in tell_acts([ACT]))
