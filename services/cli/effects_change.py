"""The commands of `counterfoil effects` by which a person settles what no rule settles. They change something each.

Every one names exact keys, says who wants it and why, is journaled before it is done, and may be repeated: the same
command is the same command. What they share is in `services.cli.rulings`, which brings Temporal: it is imported when
one of them runs.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from services.cli.output import Command, Output, pass_output
from services.effects.commands import CommandName
from services.effects.keys import LAST_GENERATION, PROVIDER_KEY
from services.effects.states import TERMINAL, EffectState

if TYPE_CHECKING:
    from services.cli.rulings import Counsel
    from services.effects.commands import Ruling

F = TypeVar("F", bound=Callable[..., Any])


def check_key(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Refuse what is not one exact key; a name would mean another effect after a redo."""
    if PROVIDER_KEY.fullmatch(value):
        return value
    raise click.BadParameter(
        f"{value!r:.140} is not a key (cf1-...-g1). SCOPE/NAME is for `effects show`: after a redo it means another "
        "effect, and a command repeated must be the same command."
    )


def read_keys(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of a command line, each once; `-` stands for those on standard input, one a line."""
    keys: list[str] = []
    for value in values:
        lines = sys.stdin.read().splitlines() if value == "-" else [value]
        keys += [check_key(ctx, param, line.strip()) for line in lines if line.strip()]
    return tuple(dict.fromkeys(keys))


def _said(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value.strip():
        return value
    raise click.BadParameter("it says nothing. It is recorded, for whoever reads the journal later.")


def _by_somebody(command: F) -> F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing and send nothing."),
        click.option("--reason", required=True, callback=_said, help="Why, for the journal."),
        click.option("--by", required=True, callback=_said, help="Who wants it; recorded as claimed."),
    ):
        command = option(command)
    return command


def _of_keys(command: F) -> F:
    return click.argument("keys", metavar="KEYS...", nargs=-1, required=True, callback=read_keys)(command)


def _waiting(command: F) -> F:
    return click.option(
        "--wait-seconds",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Wait this long for what sends it, and say how it ended.  [default: do not wait]",
    )(command)


def _rule_on_all(
    output: Output,
    command: CommandName,
    keys: tuple[str, ...],
    rule: "Callable[[Counsel, str], Awaitable[Ruling]]",
    *,
    dry_run: bool,
    wait_seconds: float = 0.0,
) -> None:
    from services.cli.rulings import Ask, rule_on_all  # noqa: PLC0415 - brings Temporal; a list needs neither

    rule_on_all(output, Ask(command=command, keys=keys, dry_run=dry_run, wait_seconds=wait_seconds), rule)


@click.command(name="give-up", cls=Command, short_help="Send nothing more for it, and close its key.")
@_of_keys
@_by_somebody
@pass_output
def give_up(output: Output, keys: tuple[str, ...], *, by: str, reason: str, dry_run: bool) -> None:
    """Give effects up that are unsettled: nothing more is sent under their keys. KEYS, or - for one a line on stdin.

    The receipt is looked up then. Where there is one it settles the effect, committed too: that is said, and nothing is
    undone. Where there is none the key is closed, and a request that is still under way does nothing.

    Exit codes: 0 nothing was done under the key, and nothing will be; 1 it is committed, or refused; 2 wrong use; 3 a
    dependency is unreachable, or it is not confirmed: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.GIVE_UP,
        keys,
        lambda at, key: at.desk.give_up(key, by=by, reason=reason, dry_run=dry_run),
        dry_run=dry_run,
    )


@click.command(cls=Command, short_help="Settle by evidence what no rule settles.")
@_of_keys
@click.option(
    "--as",
    "to",
    required=True,
    type=click.Choice([state.value for state in EffectState if state in TERMINAL]),
    help="How it ended, as far as you know.",
)
@click.option("--evidence", required=True, callback=_said, help="What shows it: a ticket, a statement, a photograph.")
@_by_somebody
@pass_output
def resolve(
    output: Output, keys: tuple[str, ...], *, to: str, evidence: str, by: str, reason: str, dry_run: bool
) -> None:
    """Resolve effects that are unsettled, with evidence. KEYS, or - for one a line on standard input.

    The request is journaled, then the inventory is asked: for voided its key is closed, for the others its receipt is
    looked up, and what the inventory holds settles the effect, whatever was wanted. Only where it has answered and
    cannot say does your word stand alone; the effect is marked as asserted then, and a redo over it takes a second
    person. On a settled effect under an alarm, its own state with evidence dismisses the late report.

    Exit codes: 0 done; 1 refused, or it ended in another state; 2 wrong use; 3 a dependency is unreachable, or it is
    not confirmed: repeat the same command.
    """
    state = EffectState(to)
    _rule_on_all(
        output,
        CommandName.RESOLVE,
        keys,
        lambda at, key: at.desk.resolve(key, to=state, evidence=evidence, by=by, reason=reason, dry_run=dry_run),
        dry_run=dry_run,
    )


@click.command(cls=Command, short_help="Do it once more, under the next generation's key.")
@_of_keys
@_by_somebody
@click.option("--second", default="", metavar="NAME", help="A second person, where the former end was only asserted.")
@_waiting
@pass_output
def redo(
    output: Output, keys: tuple[str, ...], *, by: str, reason: str, second: str, dry_run: bool, wait_seconds: float
) -> None:
    """Decide that effects are done once more: the next generation, under a key of its own. KEYS, or - for stdin.

    KEY is the highest generation there is; every generation must be settled, and what is committed must be released
    first. A workflow sends it. The same command again names the generation that it has made. What somebody else has
    decided and nobody has begun is sent as it was decided.

    Exit codes: 0 decided, and handed to what sends it; 1 refused, or (with --wait-seconds) it did not end committed; 2
    wrong use; 3 a dependency is unreachable, or it is not confirmed: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.REDO,
        keys,
        lambda at, key: at.desk.redo(key, by=by, reason=reason, second=second, dry_run=dry_run),
        dry_run=dry_run,
        wait_seconds=wait_seconds,
    )


@click.command(cls=Command, short_help="Go on with it under the same key, or answer how it ended.")
@_of_keys
@_by_somebody
@_waiting
@pass_output
def replay(output: Output, keys: tuple[str, ...], *, by: str, reason: str, dry_run: bool, wait_seconds: float) -> None:
    """Replay effects: the same key, and so one effect at most. KEYS, or - for one a line on standard input.

    A settled one is answered as it ended, and nothing is sent. For an unsettled one the receipt is looked up, and the
    journaled bytes are sent again where there is none: by its workflow, which is woken, or where that is closed by a
    workflow of this command's own.

    Exit codes: 0 done; 1 refused, or (with --wait-seconds) it did not end committed; 2 wrong use; 3 a dependency is
    unreachable, or it is not confirmed: repeat the same command.
    """

    async def rule(at: "Counsel", key: str) -> "Ruling":
        workflow_open = await at.is_open(key)
        return await at.desk.replay(key, by=by, reason=reason, workflow_open=workflow_open, dry_run=dry_run)

    _rule_on_all(output, CommandName.REPLAY, keys, rule, dry_run=dry_run, wait_seconds=wait_seconds)


@click.command(cls=Command, short_help="Give back what a committed reservation took.")
@_of_keys
@_by_somebody
@_waiting
@pass_output
def release(output: Output, keys: tuple[str, ...], *, by: str, reason: str, dry_run: bool, wait_seconds: float) -> None:
    """Give back what committed reservations took. KEYS, or - for one a line on standard input.

    A release is an effect of its own, under a key of its own, which a workflow sends. One that has been released before
    gives the same answer.

    Exit codes: 0 handed to what sends it, or released; 1 refused, or (with --wait-seconds) the release did not end
    committed; 2 wrong use; 3 a dependency is unreachable, or it is not confirmed: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.RELEASE,
        keys,
        lambda at, key: at.desk.release(key, by=by, reason=reason, dry_run=dry_run),
        dry_run=dry_run,
        wait_seconds=wait_seconds,
    )


@click.command(cls=Command, short_help="Keep it: an effect that its workflow left, or a late report.")
@_of_keys
@_by_somebody
@pass_output
def accept(output: Output, keys: tuple[str, ...], *, by: str, reason: str, dry_run: bool) -> None:
    """Accept committed effects whose workflow closed without completing: they stay. KEYS, or - for stdin.

    They leave the list of `effects list --closed`. On an effect under an alarm it is the late report that is believed:
    the effect then counts as committed, until it is released or written off.

    Exit codes: 0 done, 1 refused, 2 wrong use, 3 a dependency is unreachable: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.ACCEPT,
        keys,
        lambda at, key: at.desk.accept(key, by=by, reason=reason, dry_run=dry_run),
        dry_run=dry_run,
    )


@click.command(cls=Command, short_help="Make a receipt without an intent an effect of ours.")
@click.argument("key", callback=check_key)
@click.option("--scope", required=True, help="The scope whose effect it is, for example INC-2041.")
@click.option("--name", required=True, help="The effect's name there, for example reserve-filter.")
@click.option("--generation", type=click.IntRange(1, LAST_GENERATION), default=1, show_default=True)
@_by_somebody
@pass_output
def adopt(
    output: Output, key: str, *, scope: str, name: str, generation: int, by: str, reason: str, dry_run: bool
) -> None:
    """Adopt an orphan of the inventory: the journal gets the effect that KEY's receipt is of, settled by the receipt.

    Scope, name and generation are yours to say, and the key must come out right: what is not of this deployment's
    making cannot be adopted.

    Exit codes: 0 done; 1 refused, or nobody has a receipt; 2 wrong use; 3 a dependency is unreachable, or it is not
    confirmed: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.ADOPT,
        (key,),
        lambda at, each: at.desk.adopt(
            each, scope=scope, name=name, generation=generation, by=by, reason=reason, dry_run=dry_run
        ),
        dry_run=dry_run,
    )


@click.command(name="write-off", cls=Command, short_help="Close the matter of an orphan or of a late report.")
@_of_keys
@_by_somebody
@pass_output
def write_off(output: Output, keys: tuple[str, ...], *, by: str, reason: str, dry_run: bool) -> None:
    """Write off orphans, and effects under an alarm: nothing will be given back. KEYS, or - for one a line on stdin.

    An orphan is listed by the audit as written off from then on. A late report no longer bars a redo: what was done
    twice then stays done.

    Exit codes: 0 done, 1 refused, 2 wrong use, 3 a dependency is unreachable: repeat the same command.
    """
    _rule_on_all(
        output,
        CommandName.WRITE_OFF,
        keys,
        lambda at, key: at.desk.write_off(key, by=by, reason=reason, dry_run=dry_run),
        dry_run=dry_run,
    )


COMMANDS: tuple[click.Command, ...] = (give_up, resolve, redo, replay, release, accept, adopt, write_off)
