"""A whole effect over a raw wire: the real attempt, settle and journal, and a peer that answers as it is told."""

import shutil
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.attempt import Attempts
from activities.contracts import SettleRequest, Standing
from activities.effects import EffectActivities
from activities.inventory import InventoryActivities
from activities.inventory_client import InventoryClient
from services.database import open_engine
from services.effects.records import EffectRow, Intent
from services.journal.store import Journal
from tests.activities.peer import Script, Wire
from tests.activities.sending import INTENT, NOW, Line, client_of
from tests.services.inventory.conftest import Clock

MOST_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was on the wire."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """Whose key it carries."""
        return self.headers["idempotency-key"].strip('"')


def parse(got: bytes) -> Request:
    """Read a request."""
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Request(method=method, path=path, headers=headers, body=body)


@dataclass
class Story:
    """One journal, one peer, and what came over the wire between them.

    Attributes:
        answers: to each request in turn: a response, or what is done to the connection instead.
        before_answering: called at each request, before its answer.
        raised: what Temporal was asked to try again for, by type.
    """

    journal: Journal
    clock: Clock
    answers: deque[bytes | Script] = field(default_factory=deque)
    asked: list[Request] = field(default_factory=list)
    raised: list[ApplicationError] = field(default_factory=list)
    before_answering: Callable[[], None] = lambda: None
    client: InventoryClient = field(init=False)

    @property
    def methods(self) -> list[str]:
        """What was asked, in order."""
        return [request.method for request in self.asked]

    @property
    def posts(self) -> list[Request]:
        """The keyed requests."""
        return [request for request in self.asked if request.method == "POST"]

    def row(self, intent: Intent = INTENT) -> EffectRow:
        """The effect as the journal has it."""
        row = self.journal.effect(intent.key)
        assert row is not None
        return row

    async def attempt(self, intent: Intent = INTENT) -> Standing | None:
        """One try of the effect's activity; None where Temporal is to try it again."""
        activities = InventoryActivities(Attempts(self.journal, self.client, {"pid": 7}), "demo")
        return await self._tried(activities.reserve, intent)

    async def settle(self, intent: Intent = INTENT, *, given_up: str = "") -> Standing | None:
        """One try of `effects.settle`; None where Temporal is to try it again."""
        activities = EffectActivities(self.journal, self.client, "demo")
        return await self._tried(activities.settle, SettleRequest(intent=intent, given_up=given_up))

    async def perform(self, *answers: bytes | Script, intent: Intent = INTENT) -> Standing:
        """Go on as `perform` does, until there is an outcome or only a person can go on."""
        self.answers.extend(answers)
        for _ in range(MOST_ROUNDS):
            standing = await self.attempt(intent)
            if standing is None:
                continue
            if standing.outcome is None:
                standing = await self.settle(intent)
            if standing is not None and (standing.outcome is not None or not standing.send_again):
                assert not self.answers, f"{len(self.answers)} answers more than {self.methods}"
                return standing
        raise AssertionError(f"no end after {self.methods}")

    async def _tried(self, function: Callable[[Any], Awaitable[Standing]], argument: Any) -> Standing | None:
        try:
            standing: Standing = await ActivityEnvironment().run(function, argument)
        except ApplicationError as error:
            if error.non_retryable:
                raise
            self.raised.append(error)
            return None
        return standing

    async def play(self, wire: Wire) -> None:
        """The peer's part."""
        while got := await wire.request():
            self.before_answering()
            self.asked.append(parse(got))
            answer = self.answers.popleft()
            if callable(answer):
                wire.again(got)
                await answer(wire)
                return
            await wire.say(answer)


@asynccontextmanager
async def story_on(line: Line, journal_path: Path, folder: Path, **options: Any) -> AsyncIterator[Story]:
    """A story with a journal that nobody has used."""
    path = folder / "journal.db"
    shutil.copyfile(journal_path, path)
    engine = open_engine(f"sqlite:///{path}")
    clock = Clock(NOW)
    story = Story(journal=Journal(engine, recorded_by="story", clock=clock), clock=clock)
    try:
        async with (
            line.peer(story.play) as peer,
            client_of(peer.url, ca_file=line.ca_file, clock=clock, **options) as client,
        ):
            story.client = client
            yield story
    finally:
        engine.dispose()


@pytest.fixture
async def story(line: Line, journal_path: Path, tmp_path: Path) -> AsyncIterator[Story]:
    """A story on each line."""
    async with story_on(line, journal_path, tmp_path) as told:
        yield told


def another(number: int) -> Intent:
    """One more effect, of another scope."""
    return replace(INTENT, scope=f"INC-{number}")
