"""`counterfoil reconcile`: ask for a sweep now and wait for it."""

import asyncio

import click

from activities.contracts import Swept
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.settings import OriginSettings
from services.temporal import connect, sweep_now
from workflows.reconciliation import Progress


@click.command(cls=Command)
@click.option(
    "--timeout-seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="How long to wait."
)
@pass_output
def reconcile(output: Output, timeout_seconds: float) -> None:
    """Match everything unsettled to its receipt, now, and say what came of it.

    The sweep looks receipts up and voids what has been given up or whose send window is over; it sends nothing. Then it
    looks at how the workflows of committed effects ended: "effects list --closed" shows what they left standing. A
    worker does the work.

    Exit codes: 0 done; 2 not set up; 3 Temporal is unreachable, or no worker answered in time (the sweep is asked for
    and runs when one does), or the inventory gave no usable answer for an effect (it stays as it was).
    """
    swept = asyncio.run(_reconcile(OriginSettings.read().origin, timeout_seconds, output))
    document = {name: getattr(swept, name) for name in Swept.__slots__}
    rows = [
        ("unsettled effects looked at", swept.looked_at),
        ("settled by a receipt", swept.matched),
        ("settled by closing the key", swept.voided),
        ("left to a live attempt", swept.owned),
        ("still waiting: their workflow goes on, or a person decides", swept.waiting),
        ("the inventory gave no usable answer", swept.unheard),
        ("committed effects whose workflows were looked at", swept.followed),
        ("newly left standing by a workflow that did not complete", swept.left),
    ]
    output.result(document, people=lambda: output.table(["reconciled", "effects"], rows))
    if swept.unheard:
        output.note(
            "What the inventory said nothing of stays pending; nothing is lost. See that it answers, then repeat."
        )
        finish(ExitCode.UNREACHABLE)


async def _reconcile(origin: str, timeout_seconds: float, output: Output) -> Swept:
    client = await connect()
    output.note("Asking for a sweep; a worker does it.")
    try:
        async with asyncio.timeout(timeout_seconds):
            return await sweep_now(client, origin, lambda progress: output.note(_words(progress)))
    except TimeoutError as error:
        raise CommandError(
            f"No worker finished the sweep within {timeout_seconds:g} s. It is asked for and runs when one does; "
            "nothing is lost. Check that a worker runs: counterfoil worker",
            ExitCode.UNREACHABLE,
        ) from error


def _words(progress: Progress) -> str:
    swept = progress.swept
    settled = swept.matched + swept.voided
    done = f"{swept.looked_at} unsettled effects looked at, {settled} settled"
    return done + (f"; the workflows of {swept.followed} looked at" if progress.part == "workflows" else "") + " ..."
