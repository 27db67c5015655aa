"""The stock keeper: the one transaction behind every effect.

What it guarantees:

- One transaction holds the key, the receipt, the reservation, the stock and the ledger movement: all or nothing.
- A key is inserted before its effect is judged. Whoever inserts it executes; whoever does not gets the stored receipt,
  word for word. So nothing is executed twice and no row ever says "in progress".
- A committed receipt moves stock exactly once, a rejection and a tombstone never; all three are for good.
- received = available + held + consumed, none below zero, and a SKU's movements are numbered 1..n without a gap, where
  n is the stock row's version.
- A release gives back all of a reservation, once; a hold ends by the database's clock, under the same row lock.
- A redo and its former generations cannot both land: the redo closes the keys that never came, and is refused when one
  of them is committed and not released.
- Sequences are handed out in commit order, per tenant.
- Locks are taken in one order: own keys, older keys from the newest down, reservations, SKUs ascending, counter.

Several calls of a tenant are one transaction: what they need is read and locked, `books` judges them in memory in the
order in which they came, and what they come to is written together. One COMMIT serves them all.

Everything here blocks: it runs in a thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import sqlalchemy as sa

from services.database import CommitUnknown, DatabaseUnreachable, writing
from services.inventory import receipts, writing_down
from services.inventory.books import Books, Judgement, Repeated
from services.inventory.contract import Answer, Call, Expiry, KeyedCall, Kind, Outcome, VoidCall
from services.inventory.loading import Again, Due, Loading, NotThese, NotTogether
from services.inventory.problems import Problem, Refused, overloaded

# A deadlock's victim runs again; so often in a row means load that waiting makes worse.
MAX_TRIES = 5
# A rival that holds a key for longer than this is answered for with request-in-progress.
LOCK_TIMEOUT_SECONDS = 2.0
# In company nobody is kept waiting for another's rival: whoever needs what is locked goes on alone.
COMPANY_LOCK_TIMEOUT_SECONDS = 0.1

T = TypeVar("T")

_DEADLOCK = {"40001", "40P01"}
_LOCK_NOT_AVAILABLE = "55P03"
# By the server, for its limit on a statement: lock after lock may be waited for, each for less than the limit on one.
_CANCELLED = "57014"


class StockKeeper:
    """Executes keyed calls and voids against one database.

    Args:
        engine: the inventory's database.
        clock: the service's own; SQLite's too, which has none.
        signing_key: signs each receipt; None leaves them unsigned.
    """

    def __init__(self, engine: sa.Engine, clock: receipts.Clock, signing_key: bytes | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._signing_key = signing_key

    def perform(self, call: Call) -> Answer:
        """Execute one call, or repeat what its key already came to.

        Raises:
            Refused: nothing was executed by this delivery, and nothing stored.
        """
        answer = self.execute(call.tenant, [call])[0]
        if isinstance(answer, Refused):
            raise answer
        return answer

    def execute(self, tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        """Execute one tenant's calls, as if one came after the other: an answer for each, in their order.

        Raises:
            NotTogether: nothing was done; each has to go alone.
            Refused: nothing was done; for a call that was alone, or for all, since the database cannot be had.
            CommitUnknown: all of them are committed, or none.
        """
        try:
            return self._execute(tenant, calls)
        except CommitUnknown:
            raise
        except DatabaseUnreachable:  # each alone would only wait as long again
            raise overloaded() from None
        except Exception as error:
            if len(calls) == 1:
                raise
            raise NotTogether from error

    def expire(self, tenant: str, reservation_ids: Sequence[str], wait_seconds: float = LOCK_TIMEOUT_SECONDS) -> int:
        """End these holds, in one transaction, if they are due and still held; how many were.

        Raises:
            Refused: a rival has held one of them, or its stock, for longer than that; none was ended.
            DatabaseUnreachable: none was ended.
        """
        calls = [Expiry(tenant=tenant, reservation_id=name) for name in reservation_ids]
        answers = self._transaction(wait_seconds, lambda connection: self._batch(connection, tenant, calls, {}))
        return sum(isinstance(answer, Answer) for answer in answers)

    def _execute(self, tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        refusals: dict[int, Refused] = {}

        def work(connection: sa.Connection) -> list[Answer | Refused]:
            return self._batch(connection, tenant, calls, refusals)

        wait_seconds = LOCK_TIMEOUT_SECONDS if len(calls) == 1 else COMPANY_LOCK_TIMEOUT_SECONDS
        while True:
            try:
                return self._transaction(wait_seconds, work)
            except Due as due:
                self.expire(tenant, due.reservation_ids, wait_seconds)
            except NotThese as found:
                refusals |= found.refusals
            except Again:
                continue

    def _transaction(self, wait_seconds: float, work: Callable[[sa.Connection], T]) -> T:
        for _ in range(MAX_TRIES):
            begun = False
            try:
                with writing(self._engine) as connection:
                    if connection.dialect.name == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(wait_seconds * 1000)}")
                    begun = True
                    return work(connection)
            except sa.exc.OperationalError as error:
                if not begun:  # the connection was lost before it was used
                    raise overloaded() from None
                state = getattr(error.orig, "sqlstate", None)
                if state == _LOCK_NOT_AVAILABLE:
                    raise Refused(
                        Problem.REQUEST_IN_PROGRESS,
                        "Another request holds this key or its stock. This delivery executed nothing. Send it again.",
                    ) from None
                if state == _CANCELLED:
                    raise overloaded() from None
                if state not in _DEADLOCK:
                    raise  # a failed commit is among these: nobody may say that nothing was executed
        raise overloaded()

    def _batch(
        self, connection: sa.Connection, tenant: str, calls: Sequence[Call], refusals: Mapping[int, Refused]
    ) -> list[Answer | Refused]:
        """Load, judge, write; `refusals` are of calls, by place, that are known to execute nothing."""
        loading = Loading(connection, tenant, self._clock)
        books = loading.books
        loading.find(calls)
        self._require_in_time(calls, refusals, books)
        wanting = [call for place, call in enumerate(calls) if place not in refusals]
        loading.claim(wanting)
        loading.lock(wanting)
        self._require_in_time(calls, refusals, books)  # again: it may have waited for its locks
        judged = [
            books.judge(call) if place not in refusals or _key(call) in books.receipts else refusals[place]
            for place, call in enumerate(calls)
        ]
        loading.require_no_idle_claim(calls, judged, refusals)
        answers = writing_down.write(connection, tenant, books, self._clock, self._signing_key)
        _require_no_guess(calls, judged, books, answers)
        return [_answer(answers, call, judgement) for call, judgement in zip(calls, judged, strict=True)]

    def _require_in_time(self, calls: Sequence[Call], refusals: Mapping[int, Refused], books: Books) -> None:
        """Who comes after the deadline under a key that is not known takes no key."""
        now = self._clock()
        late = {
            place: Refused(
                Problem.NOT_AFTER_PASSED,
                "The request came after its Effect-Not-After. This delivery executed nothing. "
                "Read the receipt to see whether an earlier one did.",
            )
            for place, call in enumerate(calls)
            if isinstance(call, KeyedCall)
            and place not in refusals
            and call.key not in books.receipts
            and now > call.not_after
        }
        if late:
            raise NotThese(late)


def _require_no_guess(
    calls: Sequence[Call], judged: Sequence[Judgement], books: Books, answers: receipts.Answers
) -> None:
    """One after the other, a call that guesses the id of a reservation made before it in the batch would find it.

    Raises:
        NotTogether: a call was told that there is no such reservation, and now there is.
    """
    made = {
        answers.receipt(entry).reservation_id
        for entry in books.entries
        if (entry.kind, entry.outcome) == (Kind.RESERVE, Outcome.COMMITTED)
    }
    if any(
        isinstance(judgement, Refused) and isinstance(call, KeyedCall) and call.reservation_id in made
        for call, judgement in zip(calls, judged, strict=True)
    ):
        raise NotTogether


def _key(call: Call) -> str | None:
    return None if isinstance(call, Expiry) else call.key


def _answer(answers: receipts.Answers, call: Call, judgement: Judgement) -> Answer | Refused:
    if isinstance(judgement, Refused):
        return judgement
    replayed = isinstance(judgement, Repeated)
    known = judgement.known if isinstance(judgement, Repeated) else judgement
    return answers.of(known, replayed=replayed, as_receipt=isinstance(call, VoidCall))
