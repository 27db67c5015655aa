"""Seams: the moments between two steps at which a process may die. The code that is watched has no line of them.

    exec INSERT effects     a statement is about to be executed: class-level engine events
    before_commit           every statement of a transaction has been executed
    after_commit            COMMIT has been answered: a wrap of the dialect's own commit
    request POST            a request is about to be made: an httpx transport
    connected POST          the connection is there and the gate has opened; not a byte is written
    sent POST               the request's last byte is written
    response POST           the answer's head is there; it has not been looked at
    start NAME              an activity has been handed to this worker: an interceptor
    complete NAME           an activity's work is done; Temporal has not heard so

A process that is struck by SIGKILL at a seam executes nothing more, no `finally` either. One that is struck by SIGSTOP
goes on from just there when it is told to.
"""

import re
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from services.certificates import trusted

_TABLE = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)")
_OF_HTTP = {
    "http11.send_request_headers.started": "connected",
    "http11.send_request_body.complete": "sent",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A signal at one seam.

    Attributes:
        number: the how manieth seam of the process; 0 for the one that has the label.
        label: the first seam that is called so.
        signal: SIGKILL, or SIGSTOP to sleep there.
    """

    number: int = 0
    label: str = ""
    signal: int = signal.SIGKILL


class Seams:
    """The seams of this process: each is told, then perhaps struck."""

    def __init__(self, tell: Callable[[str], None], strike: Strike | None = None) -> None:
        self._tell = tell
        self._strike = strike
        self._lock = threading.Lock()
        self._reached = 0

    def reach(self, label: str) -> None:
        """This thread stands at a seam."""
        with self._lock:
            self._reached += 1
            self._tell(label)
            strike = self._strike
            if strike is None or not (self._reached == strike.number or label == strike.label):
                return
            self._strike = None
            # To this very thread: a signal to the process may find another one first, and this one would go on a bit.
            signal.pthread_kill(threading.get_ident(), strike.signal)

    def watch_sql(self) -> None:
        """From now on, every statement and every commit of this process."""

        def executing(
            _connection: Any, _cursor: Any, statement: str, _parameters: Any, _context: Any, _many: bool
        ) -> None:
            self.reach(f"exec {_said(statement)}")

        commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit

        def committing(dialect: DefaultDialect, connection: Any) -> None:
            self.reach("before_commit")
            commit(dialect, connection)
            self.reach("after_commit")

        sa.event.listen(sa.Engine, "before_cursor_execute", executing)
        DefaultDialect.do_commit = committing  # type: ignore[method-assign]


def _said(statement: str) -> str:
    """A statement in two words: what it does, and to which table."""
    words = statement.split()
    table = _TABLE.search(statement)
    return f"{words[0]} {table[1]}" if table is not None else " ".join(words[:2])


class SeamTransport(httpx.AsyncBaseTransport):
    """A transport that stops at its seams."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._inner = httpx.AsyncHTTPTransport(verify=trusted(None))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Hand a request on."""
        gate = request.extensions.get("trace")

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if gate is not None:
                await gate(event, info)
            if event in _OF_HTTP:
                self._seams.reach(f"{_OF_HTTP[event]} {request.method}")

        self._seams.reach(f"request {request.method}")
        request.extensions = {**request.extensions, "trace": trace}
        response = await self._inner.handle_async_request(request)
        self._seams.reach(f"response {request.method}")
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()


class SeamInterceptor(Interceptor):
    """An interceptor that stops at the seams of every activity."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name there
        """Stand around an activity."""
        return _Around(next, self._seams)


class _Around(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, seams: Seams) -> None:
        super().__init__(inner)
        self._seams = seams

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - its name there
        name = activity.info().activity_type
        self._seams.reach(f"start {name}")
        result = await super().execute_activity(input)
        self._seams.reach(f"complete {name}")
        return result
