"""What the commands share that settle effects by a person's word: many keys, one answer for each, one exit code.

- Each key is ruled on for itself: neither one that is refused nor a defect over one keeps another from being ruled on.
  Whatever ends the command, the answers so far are said, and what is not known yet.
- What was asked is journaled before anybody is asked (`services.effect_desk`), so that a command which was interrupted,
  or is not confirmed, is completed by the same command again.
- Only a workflow sends. A ruling that needs one starts it, and is not confirmed before Temporal has taken it. A
  workflow that only has to look at the journal is woken where that is possible: it looks by itself, later.
"""

import asyncio
import os
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from temporalio.client import Client, WorkflowFailureError

from activities.inventory_client import InventoryClient
from services.cli.opening import open_journal_engine
from services.cli.output import CommandError, ExitCode, Output, explain, finish
from services.effect_commands import is_open, start_effect_command, wake
from services.effect_desk import EffectDesk
from services.effects.commands import CommandName, Ruling, ToSend, What
from services.effects.errors import InvalidCommand
from services.journal.operator import OperatorJournal
from services.settings import WorkerSettings
from services.temporal import connect
from workflows.effect_command import EffectCommand
from workflows.effects import command_workflow_id

# As many at once as the sweep looks up.
_KEYS_AT_ONCE = 8
# Of a long list progress is said once for so many.
_SAY_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is the same for every key of one command line.

    Attributes:
        command: which one.
        keys: each once, in the order in which they were given.
        dry_run: nothing is changed and nothing sent.
        wait_seconds: how long to wait for the workflow that sends; 0 waits for none.
    """

    command: CommandName
    keys: tuple[str, ...]
    dry_run: bool
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A ruling and what became of it.

    Attributes:
        sent_by: the workflow that sends, where one has to.
        ended: how the effect ended that it sent, where that was waited for.
        wrong: no command can be about this key, or something has to be mended before one can.
    """

    ruling: Ruling
    sent_by: str | None = None
    ended: str | None = None
    wrong: bool = False


class _Temporal:
    """Temporal, reached for when somebody is to be told or started; it is missing for all keys or for none."""

    def __init__(self) -> None:
        self._connected: asyncio.Task[Client] | None = None

    async def client(self) -> Client:
        """The one connection.

        Raises:
            TemporalUnreachable: nobody answers.
        """
        if self._connected is None:
            self._connected = asyncio.create_task(connect())
        return await self._connected


class Counsel:
    """Where a command's rule asks: the desk, and whether a workflow is open."""

    def __init__(self, desk: EffectDesk, journal: OperatorJournal, temporal: _Temporal) -> None:
        self.desk = desk
        self._journal = journal
        self._temporal = temporal

    async def is_open(self, key: str) -> bool:
        """Whether the workflow of this effect is open; no effect has none.

        Raises:
            TemporalUnreachable: nobody answers.
            RPCError: nobody answers any more.
        """
        row = await asyncio.to_thread(self._journal.effect, key)
        return row is not None and await is_open(await self._temporal.client(), row.workflow_id)


Rule = Callable[[Counsel, str], Awaitable[Ruling]]


def rule_on_all(output: Output, ask: Ask, rule: Rule) -> None:
    """Rule on every key, start and wake who has to act, say what came of it, and end with the exit code."""
    settings = WorkerSettings.read()
    with open_journal_engine(settings) as engine:
        office = _Office(engine, settings, output, ask, rule)
        try:
            asyncio.run(office.work())
        except KeyboardInterrupt:
            output.note("Interrupted. What has been ruled stands; the same command goes on with the rest.")
            _say(output, ask, office.answers())
            raise
    answers = office.answers()
    _say(output, ask, answers)
    exit_code = _exit_code(answers)
    if exit_code is not ExitCode.DONE:
        finish(exit_code)


def _say(output: Output, ask: Ask, answers: list[_Answer]) -> None:
    counts = Counter(answer.ruling.what for answer in answers)
    document = {
        "results": [_document(answer) for answer in answers],
        **{what.value: counts[what] for what in What},
    }
    output.result(document, people=lambda: _show(output, ask, answers, counts))


class _Office:
    """One command line at work."""

    def __init__(self, engine: sa.Engine, settings: WorkerSettings, output: Output, ask: Ask, rule: Rule) -> None:
        self._settings = settings
        self._output = output
        self._ask = ask
        self._rule = rule
        self._temporal = _Temporal()
        self._journal = OperatorJournal(
            engine,
            recorded_by=f"effects {os.getpid()}@{socket.gethostname()}",
            **settings.rules,
        )
        self._unwoken: str = ""
        self._stopped: str = ""
        self._answers: dict[str, _Answer] = {}
        self._ends: dict[str, str] = {}
        self._unheard: dict[str, str] = {}
        self._traced: set[type[Exception]] = set()

    async def work(self) -> None:
        """Rule on every key, and wait for what is sent, if that is asked; `answers` says what came of it."""
        provider = InventoryClient(
            self._settings.inventory_url,
            self._settings.inventory_token.get_secret_value(),
            connections=_KEYS_AT_ONCE,
            ca_file=self._settings.inventory_ca_file,
            signing_keys=self._settings.signing_keys,
        )
        desk = EffectDesk(self._journal, provider, origin=self._settings.origin)
        counsel = Counsel(desk, self._journal, self._temporal)
        at_once = asyncio.Semaphore(_KEYS_AT_ONCE)

        async def one(key: str) -> None:
            async with at_once:
                self._answers[key] = await self._one(counsel, key)
            ruled = len(self._answers)
            if ruled % _SAY_EVERY == 0:
                self._output.note(f"{ruled} of {len(self._ask.keys)} keys are ruled on.")

        try:
            await asyncio.gather(*(one(key) for key in self._ask.keys))
        finally:
            await provider.close()
        if self._unwoken:
            self._output.note(
                f"A workflow could not be told ({self._unwoken}). Nothing is lost: it looks at the journal by itself."
            )
        await self._wait()

    def answers(self) -> list[_Answer]:
        """One for each key, in their order; what is not known by now is said to be so."""
        interrupted = "Interrupted before there was an answer. Repeat the same command."
        unknown = (_Answer(ruling=self._without_effect(key, What.UNCONFIRMED, interrupted)) for key in self._ask.keys)
        answers = [self._answers.get(key, none) for key, none in zip(self._ask.keys, unknown, strict=True)]
        return [self._with_end(answer) for answer in answers] if self._waits else answers

    async def _one(self, counsel: Counsel, key: str) -> _Answer:
        if self._stopped:
            return _Answer(ruling=self._without_effect(key, What.UNCONFIRMED, f"Not tried. {self._stopped}"))
        try:
            ruling = await self._rule(counsel, key)
        except InvalidCommand as error:
            return _Answer(ruling=self._without_effect(key, What.REFUSED, str(error)), wrong=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other keys have answers of their own
            return self._not_ruled(key, error)
        if self._ask.dry_run:
            return _Answer(ruling=ruling, sent_by=None if ruling.send is None else command_workflow_id(ruling.send.key))
        answer = _Answer(ruling=ruling) if ruling.send is None else await self._started(ruling, ruling.send)
        if ruling.workflow_id is not None:
            await self._wake(ruling.workflow_id)
        return answer

    def _not_ruled(self, key: str, error: Exception) -> _Answer:
        """The answer for a key on which an error came in the place of a ruling."""
        known = self._explained(error)
        said = f"{known.message} Repeat the same command."
        if known.exit_code is ExitCode.UNREACHABLE:
            # The journal or Temporal: they are away for the other keys too, and each would wait for them again.
            self._stopped = said
        else:
            said = f"How far it came is not known; what is recorded is kept. {said}"
        wrong = known.exit_code is ExitCode.WRONG_USE
        return _Answer(ruling=self._without_effect(key, What.UNCONFIRMED, said), wrong=wrong)

    def _explained(self, error: Exception) -> CommandError:
        """What an error comes to, for one key; a defect's trace is printed, once for each kind of error."""
        known = explain(error)
        if known is not None:
            return known
        if type(error) not in self._traced:
            self._traced.add(type(error))
            sys.excepthook(type(error), error, error.__traceback__)
        said = f"This is a defect of counterfoil ({type(error).__name__}: {error!s:.200}); its trace is on stderr."
        return CommandError(said, ExitCode.DEFECT)

    def _without_effect(self, key: str, what: What, said: str) -> Ruling:
        return Ruling(key=key, command=self._ask.command, what=what, state=None, said=said)

    async def _started(self, ruling: Ruling, send: ToSend) -> _Answer:
        """Hand what has to be sent to a workflow; it is journaled by now, and only the same command hands it over."""
        try:
            await start_effect_command(await self._temporal.client(), send)
        except Exception as error:  # noqa: BLE001 - the ruling is an answer, and stands
            known = self._explained(error)
            said = f"{ruling.said} It is recorded, and nothing is sent yet. {known.message}"
            said += " Then repeat the same command."
            wrong = known.exit_code is ExitCode.WRONG_USE
            return _Answer(ruling=replace(ruling, what=What.UNCONFIRMED, said=said), wrong=wrong)
        return _Answer(ruling=ruling, sent_by=command_workflow_id(send.key))

    async def _wake(self, workflow_id: str) -> None:
        try:
            await wake(await self._temporal.client(), workflow_id)
        except Exception as error:  # noqa: BLE001 - it looks by itself, and the ruling stands
            self._unwoken = f"{workflow_id}: {str(error).partition('.')[0]}"

    @property
    def _waits(self) -> bool:
        return self._ask.wait_seconds > 0 and not self._ask.dry_run

    async def _wait(self) -> None:
        """Hear how each effect ended that a workflow sends, as far as it does in time."""
        if not self._waits:
            return

        async def one(workflow_id: str) -> None:
            try:
                handle = (await self._temporal.client()).get_workflow_handle_for(EffectCommand.run, workflow_id)
                self._ends[workflow_id] = (await handle.result()).state.value
            except WorkflowFailureError as error:
                self._ends[workflow_id] = f"failed: {error.cause}"
            except Exception as error:  # noqa: BLE001 - the others may still be heard of, and all have answers
                self._unheard[workflow_id] = self._explained(error).message

        waited = [answer.sent_by for answer in self._answers.values() if answer.sent_by is not None]
        try:
            async with asyncio.timeout(self._ask.wait_seconds):
                await asyncio.gather(*(one(workflow_id) for workflow_id in waited))
        except TimeoutError:
            self._output.note(
                f"Not ended yet: {len(waited) - len(self._ends) - len(self._unheard)}. Their workflows go on, or wait "
                "for a person: effects list, effects list --alarmed."
            )

    def _with_end(self, answer: _Answer) -> _Answer:
        """An answer with how the effect ended that a workflow sends, or with the word that this is not known."""
        if answer.sent_by is None:
            return answer
        end = self._ends.get(answer.sent_by)
        if end is None:
            unheard = self._unheard.get(answer.sent_by, "")
            why = f" ({unheard.rstrip('.')})" if unheard else ""
            said = f"{answer.ruling.said} How it ends is not known yet{why}: repeat the same command."
            return replace(answer, ruling=replace(answer.ruling, what=What.UNCONFIRMED, said=said))
        what = What.DONE if end == "committed" else What.REFUSED
        said = f"{answer.ruling.said} It ended {end}."
        return replace(answer, ended=end, ruling=replace(answer.ruling, what=what, said=said))


def _exit_code(answers: list[_Answer]) -> ExitCode:
    """What asks most of a person: to repeat, then to mend the command line or a setting, then to read."""
    if any(answer.ruling.what is What.UNCONFIRMED and not answer.wrong for answer in answers):
        return ExitCode.UNREACHABLE
    if any(answer.wrong for answer in answers):
        return ExitCode.WRONG_USE
    return ExitCode.FOUND if any(answer.ruling.what is What.REFUSED for answer in answers) else ExitCode.DONE


def _document(answer: _Answer) -> dict[str, Any]:
    ruling = answer.ruling
    return {
        "key": ruling.key,
        "command": ruling.command.value,
        "what": ruling.what.value,
        "state": None if ruling.state is None else ruling.state.value,
        "said": ruling.said,
        "repeated": ruling.repeated,
        "receipt_id": ruling.receipt_id,
        "new_key": ruling.new_key,
        "sent_by": answer.sent_by,
        "ended": answer.ended,
    }


def _show(output: Output, ask: Ask, answers: list[_Answer], counts: Counter[What]) -> None:
    if ask.dry_run:
        output.say("Nothing is changed and nothing sent: this is what would be done.")
    if not answers:
        output.say("No key was given: there is nothing to do.")
    elif len(answers) == 1:
        output.say(_sentences(answers[0]))
    else:
        rows = [
            (answer.ruling.key, answer.ruling.what, answer.ruling.state or None, _sentences(answer))
            for answer in answers
        ]
        output.table(("key", "what", "state", ask.command), rows)
        output.say("")
        output.say(
            f"Done: {counts[What.DONE]}; refused: {counts[What.REFUSED]}; not confirmed: {counts[What.UNCONFIRMED]}."
        )


def _sentences(answer: _Answer) -> str:
    sends = "" if answer.sent_by is None or answer.ended is not None else f" The workflow {answer.sent_by} sends it."
    return f"{answer.ruling.said}{sends}"
