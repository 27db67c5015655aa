"""Group commit: who commits with whom, whose failure is whose, and that nobody waits for ever."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import CommitUnknown, DatabaseUnreachable, open_engine, writing
from services.journal import group_commit
from services.journal.group_commit import GroupCommit
from tests.services.journal.crowd import PATIENCE, Waiting, crowd

TABLE = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
PARTNERS = sa.Table(
    "partners",
    TABLE.metadata,
    sa.Column("id", sa.Integer, sa.ForeignKey("notes.id", deferrable=True, initially="DEFERRED"), primary_key=True),
)


@pytest.fixture
def engine(journal_url: str) -> Iterator[sa.Engine]:
    """A database with two tables of the test's own, the second with a constraint that is looked at in COMMIT."""
    engine = open_engine(journal_url)
    TABLE.metadata.create_all(engine)
    yield engine
    engine.dispose()
    engine = open_engine(journal_url)
    TABLE.metadata.drop_all(engine)
    engine.dispose()


def insert(number: int) -> Callable[[sa.Connection], int]:
    """Work that writes one row and answers its number."""

    def work(connection: sa.Connection) -> int:
        connection.execute(sa.insert(TABLE).values(id=number))
        return number

    return work


def numbers(engine: sa.Engine) -> list[int]:
    """What is committed, as another connection sees it."""
    with engine.connect() as connection:
        return list(connection.execute(sa.select(TABLE.c.id).order_by(TABLE.c.id)).scalars())


def count_commits(engine: sa.Engine) -> list[None]:
    """Grows by one with each COMMIT from now on."""
    counted: list[None] = []
    sa.event.listen(engine, "commit", lambda _connection: counted.append(None))
    return counted


def test_who_comes_while_a_group_commits_is_committed_together_and_gets_its_own_result(engine: sa.Engine) -> None:
    """Thirty callers, two commits: the first one's, and one for all who queued behind it."""
    counted = count_commits(engine)
    with crowd(GroupCommit(engine)) as callers:
        first = callers.lead(insert(0))
        rest = callers.follow(*map(insert, range(1, 30)))
        callers.go()
        assert [future.result(PATIENCE) for future in (first, *rest)] == list(range(30))
    assert len(counted) == 2
    assert numbers(engine) == list(range(30))


def test_a_group_has_a_limit_and_who_is_beyond_it_leads_the_next(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leadership passes on until nobody waits: seven callers in groups of three."""
    monkeypatch.setattr(group_commit, "GROUP_LIMIT", 3)
    counted = count_commits(engine)
    commits = GroupCommit(engine)
    with crowd(commits) as callers:
        first = callers.lead(insert(0))
        rest = callers.follow(*map(insert, range(1, 8)))
        callers.go()
        assert [future.result(PATIENCE) for future in (first, *rest)] == list(range(8))
    assert len(counted) == 1 + 3
    assert commits.run(insert(8)) == 8


def test_nobodys_result_comes_before_its_commit(engine: sa.Engine) -> None:
    """While the group's COMMIT is still to be sent, no follower has been told; afterwards each finds its row."""
    commits = GroupCommit(engine)
    told: list[bool] = []
    with crowd(commits) as callers:
        callers.lead(insert(0))

        def found(number: int) -> bool:
            return number == commits.run(insert(number)) and number in numbers(engine)

        rest = [callers.queued(lambda number=number: found(number)) for number in range(1, 6)]  # type: ignore[misc]
        followers = list(callers.queue)[1:]  # the first of them is told to lead

        def before_commit(_connection: sa.Connection) -> None:
            told.extend(member.told.is_set() for member in followers)

        sa.event.listen(engine, "commit", before_commit)
        callers.go()
        assert all(future.result(PATIENCE) for future in rest)
    assert not any(told[: 2 * len(followers)])  # the first one's COMMIT, and the group's


def test_a_member_that_fails_is_rolled_back_alone(engine: sa.Engine) -> None:
    """Its error is raised for it, nothing of it is written, and the others are committed."""

    def fail(connection: sa.Connection) -> None:
        insert(100)(connection)
        raise LookupError("mine")

    def fail_in_the_database(connection: sa.Connection) -> None:
        insert(101)(connection)
        insert(101)(connection)

    with crowd(GroupCommit(engine)) as callers:
        callers.lead(insert(0))
        one, failed, two, refused, three = callers.follow(insert(1), fail, insert(2), fail_in_the_database, insert(3))
        callers.go()
        with pytest.raises(LookupError, match="mine"):
            failed.result(PATIENCE)
        with pytest.raises(sa.exc.IntegrityError):
            refused.result(PATIENCE)
        assert [future.result(PATIENCE) for future in (one, two, three)] == [1, 2, 3]
    assert numbers(engine) == [0, 1, 2, 3]


def test_a_member_whose_constraint_fails_in_the_commit_is_rolled_back_alone(engine: sa.Engine) -> None:
    """A COMMIT that is refused is nobody else's failure: each tries alone, and hears what it is."""

    def half(connection: sa.Connection) -> None:
        connection.execute(sa.insert(PARTNERS).values(id=100))

    with crowd(GroupCommit(engine)) as callers:
        callers.lead(insert(0))
        one, failed, two = callers.follow(insert(1), half, insert(2))
        callers.go()
        with pytest.raises(sa.exc.IntegrityError):
            failed.result(PATIENCE)
        assert [future.result(PATIENCE) for future in (one, two)] == [1, 2]
    assert numbers(engine) == [0, 1, 2]


def test_a_database_that_is_gone_is_told_to_every_member_at_once(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written, and nobody tries alone what the group could not."""
    tries: list[None] = []

    def refuse(*_: object) -> None:
        tries.append(None)
        raise DatabaseUnreachable("gone")

    with crowd(GroupCommit(engine)) as callers:
        first = callers.lead(insert(0))
        rest = callers.follow(*map(insert, range(1, 6)))
        monkeypatch.setattr(group_commit, "writing", refuse)
        callers.go()
        assert first.result(PATIENCE) == 0
        assert {type(future.exception(PATIENCE)) for future in rest} == {DatabaseUnreachable}
    assert len(tries) == 1
    assert numbers(engine) == [0]


def test_an_interrupted_leader_leaves_nobody_waiting(engine: sa.Engine) -> None:
    """Its group cannot know what became of it; the next group is led by its own first member."""
    inside, later = threading.Event(), threading.Event()

    def interrupted(_connection: sa.Connection) -> None:
        inside.set()
        assert later.wait(PATIENCE)
        raise KeyboardInterrupt

    with crowd(GroupCommit(engine)) as callers:
        first = callers.lead(insert(0))
        leader, member = callers.follow(interrupted, insert(1))
        callers.go()
        assert inside.wait(PATIENCE)
        callers.commits._waiting = callers.queue = Waiting()
        behind = callers.follow(insert(2), insert(3))
        later.set()
        assert first.result(PATIENCE) == 0
        assert isinstance(leader.exception(PATIENCE), KeyboardInterrupt)
        assert isinstance(member.exception(PATIENCE), CommitUnknown)
        assert [future.result(PATIENCE) for future in behind] == [2, 3]
    assert numbers(engine) == [0, 2, 3]


class Interrupted(threading.Event):
    """Ctrl-C in the thread that waits for it: at once, or as it is told."""

    def __init__(self, *, told: bool) -> None:
        super().__init__()
        self._told = told

    def wait(self, timeout: float | None = None) -> bool:
        """The interruption."""
        if self._told:
            super().wait(timeout)
        raise KeyboardInterrupt


@pytest.mark.parametrize("told", [False, True], ids=["while it waits", "as it is told to lead"])
def test_a_member_that_is_interrupted_leaves_nobody_waiting_behind_it(engine: sa.Engine, told: bool) -> None:
    """It is out of the queue, nothing of it is written, and the next one leads in its place."""
    with crowd(GroupCommit(engine)) as callers:
        first = callers.lead(insert(0))
        callers.queue.next_told = Interrupted(told=told)
        gone, behind, another = callers.follow(insert(1), insert(2), insert(3))
        if not told:
            assert isinstance(gone.exception(PATIENCE), KeyboardInterrupt)
        callers.go()
        assert isinstance(gone.exception(PATIENCE), KeyboardInterrupt)
        assert [future.result(PATIENCE) for future in (first, behind, another)] == [0, 2, 3]
    assert numbers(engine) == [0, 2, 3]


def test_many_threads_lose_nothing(engine: sa.Engine) -> None:
    """32 threads, 50 transactions each: every one is there, in fewer commits than there are transactions."""
    commits = GroupCommit(engine)
    counted = count_commits(engine)

    def write(thread: int) -> list[int]:
        return [commits.run(insert(thread * 50 + turn)) for turn in range(50)]

    with ThreadPoolExecutor(32) as pool:
        answered = [number for some in pool.map(write, range(32)) for number in some]
    assert answered == list(range(1600))
    assert len(counted) < 1600
    assert numbers(engine) == list(range(1600))


@pytest.fixture
def row(engine: sa.Engine) -> None:
    """A row that a rival can hold."""
    with writing(engine) as connection:
        insert(100)(connection)


def take(connection: sa.Connection) -> str:
    """Work that needs the row, after it has written another."""
    insert(101)(connection)
    connection.execute(sa.select(TABLE).where(TABLE.c.id == 100).with_for_update())
    return "taken"


@contextmanager
def rival(url: str) -> Iterator[sa.Connection]:
    """Another client in a transaction that holds the row."""
    other = open_engine(url)
    with other.connect() as connection:
        connection.execute(sa.select(TABLE).where(TABLE.c.id == 100).with_for_update())
        yield connection
    other.dispose()


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_member_whose_row_somebody_holds_does_not_hold_up_the_others(engine: sa.Engine, journal_url: str) -> None:
    """They are committed while it still waits; it gets its result when the row is free."""
    with rival(journal_url) as other, crowd(GroupCommit(engine)) as callers:
        forever(engine)
        first = callers.lead(insert(0))
        one, held, two = callers.follow(insert(1), take, insert(2))
        callers.go()
        assert [future.result(PATIENCE) for future in (first, one, two)] == [0, 1, 2]
        assert not held.done()
        other.rollback()
        assert held.result(PATIENCE) == "taken"
    assert numbers(engine) == [0, 1, 2, 100, 101]


def forever(engine: sa.Engine) -> None:
    """Whoever goes alone waits for a lock as long as the test lasts."""
    engine.dispose()
    sa.event.listen(engine, "checkout", lambda connection, *_: _set(connection, "60s"))


def _set(connection: Any, lock_timeout: str) -> None:
    connection.execute(f"SET lock_timeout = '{lock_timeout}'; SET statement_timeout = '60s'").close()
    connection.commit()


@pytest.mark.usefixtures("row")
@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_member_whose_row_stays_held_fails_alone_with_nothing_written(engine: sa.Engine, journal_url: str) -> None:
    """After the lock timeout of every connection; the others are there."""
    with rival(journal_url), crowd(GroupCommit(engine)) as callers:
        callers.lead(insert(0))
        held, one = callers.follow(take, insert(1))
        callers.go()
        assert one.result(PATIENCE) == 1
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            held.result(PATIENCE)
    assert numbers(engine) == [0, 1, 100]
