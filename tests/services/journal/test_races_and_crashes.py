"""The store under rivals and crashes: two threads, two processes, SIGKILL before the commit, a commit that fails."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import sqlalchemy as sa

from services import database
from services.database import CommitUnknown, DatabaseUnreachable, open_engine, writing
from services.effects.errors import FingerprintMismatch
from services.effects.states import EffectState
from services.journal.store import Begun, Journal
from services.journal.tables import EFFECTS
from tests.postgres import Databases
from tests.services.effects.halves import (
    make_intent,
    make_mark,
    make_receipt,
    shows,
)
from tests.services.journal.conftest import Clock
from tests.services.journal.crowd import PATIENCE, crowd

INTENT = make_intent()


def test_two_threads_that_begin_one_key_get_one_first_mark(journal: Journal) -> None:
    """Exactly one may send at once (E11, E14)."""
    for number in range(20):
        intent = make_intent(scope=f"INC-{number}")
        barrier = threading.Barrier(2)

        def begin(name: str, intent: object = intent, barrier: threading.Barrier = barrier) -> Begun:
            barrier.wait()
            return journal.begin(intent, make_mark(name))  # type: ignore[arg-type]

        with ThreadPoolExecutor(2) as pool:
            begun = list(pool.map(begin, ["attempt-1", "attempt-2"]))
        assert sorted(one.attempt is not None for one in begun) == [False, True]
        assert len(journal.attempts(intent.key)) == 1


def test_another_payload_in_a_group_is_refused_alone(journal: Journal) -> None:
    """It raises for the one that asked; whoever was committed with it has its mark (A18)."""
    journal.begin(INTENT, make_mark("attempt-1"))
    before = journal.entries(INTENT.key)
    other = make_intent(request={"lines": []})
    intents = [make_intent(scope=f"INC-{number}") for number in range(6)]
    with crowd(journal._commits) as callers:
        callers.lead(lambda _connection: None)
        begun = [callers.queued(partial(journal.begin, intent, make_mark("attempt-1"))) for intent in intents[:3]]
        refused = callers.queued(partial(journal.begin, other, make_mark("attempt-2")))
        begun += [callers.queued(partial(journal.begin, intent, make_mark("attempt-1"))) for intent in intents[3:]]
        callers.go()
        with pytest.raises(FingerprintMismatch):
            refused.result(PATIENCE)
        assert all(future.result(PATIENCE).attempt is not None for future in begun)
    assert journal.entries(INTENT.key) == before
    assert all(len(journal.attempts(intent.key)) == 1 for intent in intents)


def _kinds(journal: Journal) -> list[str]:
    return [entry.kind for entry in journal.entries(INTENT.key)]


RIVAL = """
import sys
from services.database import open_engine
from services.journal.store import Journal
from tests.services.effects.halves import DECIDED_AT, make_intent, make_mark
engine = open_engine(sys.argv[1])
journal = Journal(engine, recorded_by=sys.argv[2], clock=lambda: DECIDED_AT)
print("ready", flush=True)
for line in sys.stdin:
    begun = journal.begin(make_intent(scope=line.strip()), make_mark(sys.argv[2]))
    print(begun.attempt is not None, flush=True)
engine.dispose()
"""

# Stops with the transaction of `begin` written and not committed, until it is killed.
FROZEN = """
import sys
import sqlalchemy as sa
from services.database import open_engine
from services.journal.store import Journal
from tests.services.effects.halves import DECIDED_AT, make_intent, make_mark
engine = open_engine(sys.argv[1])

@sa.event.listens_for(engine, "commit", once=True)
def freeze(connection):
    print("before commit", flush=True)
    sys.stdin.readline()

Journal(engine, recorded_by="frozen", clock=lambda: DECIDED_AT).begin(make_intent(), make_mark("attempt-1"))
print("committed", flush=True)
"""


# Frozen as above, and says what comes of its begin; its transaction may be idle for a second.
THAWED = """
import sys
from services import database
database._POSTGRES_TIMEOUTS["idle_in_transaction_session_timeout"] = "1s"
""" + FROZEN.replace("Journal(engine, ", "try:\n    begun = Journal(engine, ").replace(
    'print("committed", flush=True)',
    """except Exception as error:
    print(type(error).__name__, flush=True)
else:
    print("may send" if begun.attempt else "may not send", flush=True)""",
)


@contextlib.contextmanager
def _child(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def _tell(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def test_two_processes_that_begin_one_key_get_one_first_mark(journal: Journal, journal_url: str) -> None:
    """The database decides, not the process (E11)."""
    with _child(RIVAL, journal_url, "one") as one, _child(RIVAL, journal_url, "other") as other:
        assert (_read(one), _read(other)) == ("ready", "ready")
        for number in range(20):
            for child in (one, other):
                _tell(child, f"INC-{number}")
            assert sorted((_read(one), _read(other))) == ["False", "True"]
            assert len(journal.attempts(make_intent(scope=f"INC-{number}").key)) == 1


def test_a_process_killed_before_its_commit_leaves_no_row_and_no_lock(journal: Journal, journal_url: str) -> None:
    """No row, no byte: whoever comes next begins at once."""
    with _child(FROZEN, journal_url) as child:
        assert _read(child) == "before commit"
        assert journal.effect(INTENT.key) is None
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert journal.all_entries() == ()
    assert journal.decisions(origin="demo", scope=INTENT.scope) == ()
    assert journal.begin(INTENT, make_mark("attempt-2")).attempt is not None


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_writer_that_is_frozen_in_its_transaction_holds_up_its_own_key_and_not_for_ever(
    journal: Journal, journal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go on; the server ends its transaction; when it thaws it hears of it and may not send (A13)."""
    with _child(THAWED, journal_url) as child:
        assert _read(child) == "before commit"
        child.send_signal(signal.SIGSTOP)
        assert journal.begin(make_intent(scope="INC-1"), make_mark("attempt-2")).attempt is not None
        with _patient(journal_url, monkeypatch) as patient:  # begins once the server has let go of the row
            assert patient.begin(INTENT, make_mark("attempt-2")).attempt is not None
        child.send_signal(signal.SIGCONT)
        _tell(child, "go on")
        assert _read(child) == "CommitUnknown"
    assert [attempt.attempt_id for attempt in journal.attempts(INTENT.key)] == ["attempt-2"]


@contextlib.contextmanager
def _patient(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """A journal that waits for a lock for as long as the test lasts."""
    for name in ("lock_timeout", "statement_timeout"):
        monkeypatch.setitem(database._POSTGRES_TIMEOUTS, name, "60s")
    engine = open_engine(url)
    yield Journal(engine, recorded_by="patient", clock=Clock())
    engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_a_writer_that_is_frozen_in_its_transaction_holds_up_every_writer_of_a_file(
    journal: Journal, journal_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told that nothing was written, readers go on, and what was frozen is committed when it thaws."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT_SECONDS", 1)
    other = make_intent(scope="INC-1")
    with _child(FROZEN, journal_url) as child:
        assert _read(child) == "before commit"
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(DatabaseUnreachable, match="Nothing was written"):
            journal.begin(other, make_mark("attempt-2"))
        assert journal.all_entries() == ()
        child.send_signal(signal.SIGCONT)
        _tell(child, "go on")
        assert _read(child) == "committed"
    assert _kinds(journal) == ["decision", "intent", "attempt"]
    assert journal.begin(other, make_mark("attempt-2")).attempt is not None


def test_a_commit_that_fails_leaves_nothing_half_written(journal: Journal, journal_url: str) -> None:
    """Neither entry nor row, and the next writer is not held up."""
    engine = open_engine(journal_url)

    def fail(_connection: sa.Connection) -> None:
        raise OSError("no space left on device")

    sa.event.listen(engine, "commit", fail)
    broken = Journal(engine, recorded_by="broken", clock=Clock())
    with pytest.raises(OSError, match="no space"):
        broken.begin(INTENT, make_mark("attempt-1"))
    assert journal.all_entries() == ()
    assert journal.begin(INTENT, make_mark("attempt-2")).attempt is not None
    with pytest.raises(OSError, match="no space"):
        broken.observe(INTENT.key, shows(make_receipt(INTENT)))
    row = journal.effect(INTENT.key)
    assert row is not None
    assert row.state is EffectState.PENDING
    assert "observation" not in _kinds(journal)
    engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("landed", [False, True])
def test_a_mark_whose_commit_got_no_answer_counts_only_where_it_is_found(
    journal: Journal, journal_url: str, *, landed: bool
) -> None:
    """G1, A14: it is read back by the attempt's id; SQLite says of no failed COMMIT what became of it."""
    engine = open_engine(journal_url)
    commit, unanswered = engine.dialect.do_commit, iter([True])

    def commit_without_an_answer(connection: object) -> None:
        first = next(unanswered, False)
        if landed or not first:
            commit(connection)  # type: ignore[arg-type]
        if first:
            raise sqlite3.OperationalError("disk I/O error")

    engine.dialect.do_commit = commit_without_an_answer  # type: ignore[method-assign, assignment]
    cut = Journal(engine, recorded_by="cut", clock=Clock())
    if landed:
        begun = cut.begin(INTENT, make_mark("attempt-1"))
        assert begun.attempt is not None
        assert journal.attempts(INTENT.key) == (begun.attempt,)
    else:
        with pytest.raises(CommitUnknown):
            cut.begin(INTENT, make_mark("attempt-1"))
        assert journal.all_entries() == ()
    engine.dispose()


def test_no_transaction_is_open_after_a_method_returns(journal: Journal, engine: sa.Engine) -> None:
    """Nothing is held across a send (G18): another connection may write at once, refused or not."""
    journal.begin(INTENT, make_mark("attempt-1"))
    with pytest.raises(FingerprintMismatch):
        journal.own(make_intent(request={"lines": []}))
    assert isinstance(engine.pool, sa.QueuePool)
    assert engine.pool.checkedout() == 0


def test_a_row_is_held_from_its_reading_to_the_commit(postgres: Databases) -> None:
    """On PostgreSQL, where writers do not queue, nobody changes what a mark is decided on (G1)."""
    engine = open_engine(postgres.migrated("journal"))
    journal = Journal(engine, recorded_by="test", clock=Clock())
    journal.begin(INTENT, make_mark("attempt-1"))
    take = sa.select(EFFECTS.c.key).with_for_update(nowait=True)
    with writing(engine) as connection:
        assert journal._read(connection, INTENT.key, lock=True) is not None
        with pytest.raises(sa.exc.OperationalError, match="could not obtain lock"), writing(engine) as rival:
            rival.execute(take)
    with writing(engine) as rival:
        assert rival.execute(take).scalars().all() == [INTENT.key]
    engine.dispose()
