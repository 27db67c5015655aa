"""Starts the contributors of a run as processes of their own, joins them, kills them, and says what they did.

What this module guarantees:

- A contributor is an operating-system process that holds its own rows and opens its own files. It dies with its
  supervisor (Linux: PR_SET_PDEATHSIG; elsewhere when its socket closes).
- What the contributors add to one sum goes through here and back to all: nobody is ahead of anybody by more than one
  sum. Where an answer is withheld, all of them are held, wherever they came from.
- A contributor that ends without having said so ends the run for all, by name; no process stays behind.
- Who is killed is killed by SIGKILL, and its return code is told as the system gave it.
"""

import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import CheckpointError
from .learner import LearnerConfig, whole_digests
from .wire import Closed, Kind, pack, receive, send

# A run of the reference learner takes seconds; who is silent for so long will not speak any more.
SILENT_SECONDS: Final = 120.0


class ContributorFailed(CheckpointError):
    """A contributor ended before its work was done.

    Attributes:
        told: the error that it told of, if it did: `type`, `message` and what else belongs to it.
    """

    def __init__(self, message: str, told: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.told = dict(told or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where and when a run saves.

    Attributes:
        root: the store's folder.
        run: the run's id.
        launch: 32 hexadecimal digits, fresh at every start.
        save_at: the updates after which it saves.
        resume: whether it takes up the latest checkpoint.
        kind: full, or weights_only.
        effects: the watermark that its checkpoints keep, or None.
        watermark: the journal's watermark of this moment, for a resume.
        points: whether every point of a save asks the supervisor for leave to go on.
        overlap: whether training goes on while a save is written, until the next one is due; otherwise its end is
            waited for after the next update.
    """

    root: str
    run: str
    launch: str
    save_at: tuple[int, ...] = ()
    resume: bool = False
    kind: str = "full"
    effects: Mapping[str, Any] | None = None
    watermark: Mapping[str, Any] | None = None
    points: bool = False
    overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How long a start may live, from when its contributors begin to train; one of the two.

    Attributes:
        seconds: until all are killed, wherever they are.
        updates: all are killed when each has applied so many more.
    """

    seconds: float | None = None
    updates: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one contributor is asked to do: all that its process is given."""

    contributor: int
    world: int
    until: int
    config: Mapping[str, Any]
    supervisor: int
    line: int
    points: int
    store: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A contributor that was killed, and what the system says of its end."""

    pid: int
    returncode: int


@dataclass(slots=True, kw_only=True)
class Ran:
    """What a run did.

    Attributes:
        fields: after each update, the digest of every field of the whole model.
        told: what the contributors said beside that, in order: who, and what.
        pids: of the contributors.
        killed: who was killed.
    """

    fields: dict[int, dict[str, str]] = field(default_factory=dict)
    told: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    pids: tuple[int, ...] = ()
    killed: tuple[Dead, ...] = ()

    def said(self, name: str) -> list[Any]:
        """Everything that was told under a name."""
        return [what[name] for _, what in self.told if name in what]


@dataclass(slots=True, kw_only=True)
class _Contributor:
    number: int
    process: subprocess.Popen[bytes]
    line: socket.socket
    points: socket.socket
    update: int = 0
    done: bool = False
    waiting: bytes | None = None


class Supervisor:
    """One start of all contributors of a run.

    Args:
        config: of the learner.
        world: how many contributors, each a process.
        until: the update after which the run is done.
        store: where it saves; None: nowhere.
        hold_after: hold all contributors when each has applied this update and asks for the next sum, then kill them.
        kill_at: kill all contributors when one of them comes to this point of a save.
        life: kill all contributors at the end of it.
        applied: told about each update that all have applied; none of them is ahead of it by more than one sum while it
            is told.

    Attributes:
        ran: what was done so far, also where `run` raised.
        killed_at: when all were killed, by the monotonic clock.
    """

    def __init__(
        self,
        config: LearnerConfig,
        *,
        world: int,
        until: int,
        store: Store | None = None,
        hold_after: int | None = None,
        kill_at: str | None = None,
        life: Life | None = None,
        applied: Callable[[int], None] = lambda _update: None,
    ) -> None:
        self._config = config
        self._world = world
        self._until = until
        self._store = store
        self._hold_after = hold_after
        self._kill_at = kill_at
        self._life = life or Life()
        self._over_at = math.inf  # by the life's seconds, which begin when somebody has begun to train
        self._applied = applied
        self._rows: dict[int, dict[int, dict[str, list[str]]]] = {}
        self.ran = Ran()
        self.killed_at = math.inf

    def run(self) -> Ran:
        """Run to the end, or until everybody was killed as asked.

        Raises:
            ContributorFailed: one ended, or fell silent, before its work was done.
        """
        with self._started() as contributors, selectors.DefaultSelector() as selector:
            self.ran.pids = tuple(each.process.pid for each in contributors)
            for each in contributors:
                selector.register(each.line, selectors.EVENT_READ, each)
                selector.register(each.points, selectors.EVENT_READ, each)
            heard = time.monotonic()
            while not all(each.done for each in contributors):
                ready = selector.select(timeout=max(0.0, min(1.0, self._over_at - time.monotonic())))
                if time.monotonic() >= self._over_at:
                    self.ran.killed = tuple(self._kill(contributors))
                    return self.ran
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENT_SECONDS:
                    raise ContributorFailed(
                        f"No contributor has said anything for {SILENT_SECONDS:.0f} s. They were killed."
                    )
                for key, _ in ready:
                    if not self._hear(key.data, key.fileobj, selector):
                        self.ran.killed = tuple(self._kill(contributors))
                        return self.ran
                if self._held(contributors):
                    self.ran.killed = tuple(self._kill(contributors))
                    return self.ran
            for each in contributors:
                each.process.wait(SILENT_SECONDS)
        return self.ran

    def _hear(self, contributor: _Contributor, connection: Any, selector: selectors.BaseSelector) -> bool:
        """Take one message; False when it is the point at which everybody is to be killed."""
        try:
            kind, payload = receive(connection)
        except Closed:
            selector.unregister(connection)
            if connection is contributor.line and not contributor.done:
                raise self._failure(contributor) from None
            return True
        if kind is Kind.GATHER:
            contributor.waiting = payload
            return True
        if kind is Kind.POINT:
            name = payload.decode()
            if name == self._kill_at:
                return False
            with suppress(OSError):
                send(connection, Kind.POINT, b"")
            return True
        self._told(contributor, json.loads(payload))
        return True

    def _told(self, contributor: _Contributor, what: dict[str, Any]) -> None:
        if "rows" in what:
            contributor.update = update = int(what["update"])
            rows = self._rows.setdefault(update, {})
            rows[contributor.number] = what["rows"]
            if len(rows) == self._world:
                self.ran.fields[update] = whole_digests([rows[number] for number in range(self._world)])
                del self._rows[update]
                self._applied(update)
            return
        contributor.done = contributor.done or "done" in what
        if "began" in what and self._life.seconds is not None:
            self._over_at = min(self._over_at, time.monotonic() + self._life.seconds)
        if "began" in what and self._life.updates is not None:
            self._hold_after = int(what["began"]["update"]) + self._life.updates
        self.ran.told.append((contributor.number, what))

    def _held(self, contributors: Sequence[_Contributor]) -> bool:
        """Answer a sum to which everybody has given; True when everybody is to be killed instead."""
        parts = [each.waiting for each in contributors if each.waiting is not None]
        if len(parts) < len(contributors):
            return False
        if self._hold_after is not None and all(each.update >= self._hold_after for each in contributors):
            return True
        answer = pack(parts)
        for each in contributors:
            each.waiting = None
            with suppress(OSError):  # who has died meanwhile is noticed by its line
                send(each.line, Kind.GATHER, answer)
        return False

    def _failure(self, contributor: _Contributor) -> ContributorFailed:
        told = next(
            (what["error"] for number, what in self.ran.told if number == contributor.number and "error" in what), None
        )
        if told is None:  # another one's error may be the reason
            told = next(iter(self.ran.said("error")), None)
        if told is not None:
            return ContributorFailed(f"{told['type']}: {told['message']}", told)
        code = contributor.process.wait(SILENT_SECONDS)
        return ContributorFailed(
            f"Contributor {contributor.number} (process {contributor.process.pid}) ended with {code} before its work "
            "was done. Committed checkpoints stand; the others were killed."
        )

    @contextmanager
    def _started(self) -> Iterator[list[_Contributor]]:
        contributors: list[_Contributor] = []
        try:
            for number in range(self._world):
                contributors.append(self._start(number))  # noqa: PERF401 - who was started is ended, whatever comes
            yield contributors
        finally:
            for each in contributors:
                if each.process.poll() is None:
                    each.process.kill()
                each.process.wait()
                each.line.close()
                each.points.close()

    def _start(self, number: int) -> _Contributor:
        ours, theirs = socket.socketpair()
        our_points, their_points = socket.socketpair()
        task = Task(
            contributor=number,
            world=self._world,
            until=self._until,
            config=self._config.document(),
            supervisor=os.getpid(),
            line=theirs.fileno(),
            points=their_points.fileno(),
            store=None if self._store is None else asdict(self._store),
        )
        with theirs, their_points:
            process = subprocess.Popen(  # noqa: S603 - our own module, by this interpreter, with an argument list
                [sys.executable, "-m", f"{__package__}.trainer", json.dumps(asdict(task))],
                pass_fds=(theirs.fileno(), their_points.fileno()),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the supervisor, which then ends them
            )
        return _Contributor(number=number, process=process, line=ours, points=our_points)

    def _kill(self, contributors: Sequence[_Contributor]) -> Iterator[Dead]:
        self.killed_at = time.monotonic()
        for each in contributors:
            with suppress(ProcessLookupError):
                os.kill(each.process.pid, signal.SIGKILL)
        for each in contributors:
            yield Dead(pid=each.process.pid, returncode=each.process.wait())


def _environment() -> dict[str, str]:
    """This process's, in which the package is found under the same name wherever it is started."""
    top = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
    paths = [str(top), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two runs first differ."""

    update: int
    field: str


def first_difference(
    one: Mapping[int, Mapping[str, str]], other: Mapping[int, Mapping[str, str]], *, after: int, until: int
) -> Difference | None:
    """The first update after `after`, and the field, in which two runs differ; a field that is missing differs."""
    for update in range(after + 1, until + 1):
        ours, theirs = one.get(update, {}), other.get(update, {})
        for name in sorted({*ours, *theirs}) or ["everything"]:
            if ours.get(name, "") != theirs.get(name) or not ours:
                return Difference(update=update, field=name)
    return None
