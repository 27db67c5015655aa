"""The store under rivals and crashes: two threads, two processes, SIGKILL before the commit, a commit that fails."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import CommitUnknown, open_engine, writing
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

@sa.event.listens_for(engine, "commit")
def freeze(connection):
    print("before commit", flush=True)
    sys.stdin.readline()

Journal(engine, recorded_by="frozen", clock=lambda: DECIDED_AT).begin(make_intent(), make_mark("attempt-1"))
print("committed", flush=True)
"""


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


def test_two_processes_that_begin_one_key_get_one_first_mark(journal: Journal, journal_file: Path) -> None:
    """The database decides, not the process (E11)."""
    url = f"sqlite:///{journal_file}"
    with _child(RIVAL, url, "one") as one, _child(RIVAL, url, "other") as other:
        assert (_read(one), _read(other)) == ("ready", "ready")
        for number in range(20):
            for child in (one, other):
                _tell(child, f"INC-{number}")
            assert sorted((_read(one), _read(other))) == ["False", "True"]
            assert len(journal.attempts(make_intent(scope=f"INC-{number}").key)) == 1


def test_a_process_killed_before_its_commit_leaves_no_row_and_no_lock(journal: Journal, journal_file: Path) -> None:
    """No row, no byte: whoever comes next begins at once."""
    with _child(FROZEN, f"sqlite:///{journal_file}") as child:
        assert _read(child) == "before commit"
        assert journal.effect(INTENT.key) is None
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert journal.all_entries() == ()
    assert journal.decisions(origin="demo", scope=INTENT.scope) == ()
    assert journal.begin(INTENT, make_mark("attempt-2")).attempt is not None


def test_a_commit_that_fails_leaves_nothing_half_written(journal: Journal, journal_file: Path) -> None:
    """Neither entry nor row, and the next writer is not held up."""
    engine = open_engine(f"sqlite:///{journal_file}")

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


def test_a_commit_whose_answer_is_lost_is_read_back_by_the_attempts_id(journal: Journal, journal_file: Path) -> None:
    """The mark is there: begin says so, sends nothing, and the attempt is found (A14)."""
    engine = open_engine(f"sqlite:///{journal_file}")
    commit = engine.dialect.do_commit

    def commit_and_fail(connection: object) -> None:
        commit(connection)  # type: ignore[arg-type]
        raise ConnectionResetError("cut inside COMMIT")

    engine.dialect.do_commit = commit_and_fail  # type: ignore[method-assign, assignment]
    cut = Journal(engine, recorded_by="cut", clock=Clock())
    with pytest.raises(ConnectionResetError):
        cut.begin(INTENT, make_mark("attempt-1"))
    assert [attempt.attempt_id for attempt in journal.attempts(INTENT.key)] == ["attempt-1"]
    assert journal.begin(INTENT, make_mark("attempt-1")).attempt is None
    assert _kinds(journal) == ["decision", "intent", "attempt"]
    engine.dispose()


@pytest.mark.parametrize("landed", [False, True])
def test_a_mark_whose_commit_got_no_answer_counts_only_where_it_is_found(
    journal: Journal, journal_file: Path, *, landed: bool
) -> None:
    """G1: it is read back by the attempt's id; not confirmed means not sent, and nothing half is left."""
    engine = open_engine(f"sqlite:///{journal_file}")
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
        assert journal._locked(connection, INTENT.key) is not None
        with pytest.raises(sa.exc.OperationalError, match="could not obtain lock"), writing(engine) as rival:
            rival.execute(take)
    with writing(engine) as rival:
        assert rival.execute(take).scalars().all() == [INTENT.key]
    engine.dispose()
