"""`counterfoil checkpoint plan`: what saving costs, what interruptions cost, and how often a save is worth it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from services.checkpoints.errors import CheckpointError
from services.checkpoints.plan import Costs, Tried, best_interval, plan, simulate
from services.checkpoints.timeline import measured
from services.cli.checkpoint_opening import Finite, Folder, chosen, opened, refused, run_option, tell_skipped
from services.cli.checkpoint_words import compared, measured_run, said_of_intervals
from services.cli.output import Command, Output, pass_output


@click.command(cls=Command, name="plan", short_help="Say what saving costs and how often it is worth it.")
@click.option("--bytes", "size", type=click.IntRange(0), help="Of one checkpoint.")
@click.option(
    "--bandwidth", type=Finite(0, min_open=True), metavar="BYTES/S", help="That all contributors write together."
)
@click.option("--mtbf", type=Finite(0, min_open=True), metavar="SECONDS", help="Mean time between two interruptions.")
@click.option("--blocked", type=Finite(0), metavar="SECONDS", help="That a save keeps training from going on.")
@click.option("--persist", type=Finite(0), metavar="SECONDS", help="From the capture until it is durable.")
@click.option("--restart", type=Finite(0), metavar="SECONDS", help="From an interruption to training.")
@click.option(
    "--simulate", "training", type=Finite(0, min_open=True), metavar="SECONDS", help="Play a run of so much training."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated interruptions.")
@click.option("--root", type=Folder(), help="Take what was measured in this store.")
@click.option(
    "--measured", "ran", type=click.File(encoding="utf-8"), callback=measured_run, metavar="FILE",
    help="Take what `train --interrupt-every --json` printed, and say it beside what is expected; - for stdin.",
)  # fmt: skip
@run_option
@pass_output
def plan_(
    output: Output, *, size: int | None, bandwidth: float | None, mtbf: float | None, blocked: float | None,
    persist: float | None, restart: float | None, training: float | None, seed: int, root: Path | None, run_id: str,
    ran: dict[str, Any] | None,
) -> None:  # fmt: skip
    """Say the least time a save takes, the interval that loses least, and what an interruption costs.

    The floor is bytes / bandwidth: asynchronous saving hides time, not bytes. The interval is Young's and Daly's,
    sqrt(2 * MTBF * blocked seconds). With --root, what is not given is what the newest checkpoint measured; with
    --measured, what that run did, whose account then stands beside what was to be expected of it.

    Exit codes: 0 said, 1 the run cannot be planned or has no checkpoint, 2 wrong use.
    """
    known: dict[str, Any] = {}
    if ran is not None:
        known = dict(ran["costs"])
        size, bandwidth = size or 0, bandwidth or 1.0
        training = ran["measured"]["useful_seconds"] if training is None else training
    if bandwidth is None or (mtbf is None and ran is None):
        raise click.UsageError("Give --bandwidth and --mtbf, or --measured of a run that was interrupted.")
    if root is not None:
        with opened(root, run_id) as run:
            found, skipped = chosen(run, None, "weights")
        tell_skipped(output, skipped)
        known |= dict(found.manifest.timing) | {"sequence": found.sequence, "data_bytes": found.manifest.data_bytes}
    elif size is None:
        raise click.UsageError("Give --bytes, or --root of a run that has a checkpoint.")
    costs = Costs(
        checkpoint_bytes=known["data_bytes"] if size is None else size,
        bandwidth_bytes_per_second=bandwidth,
        mtbf_seconds=(measured(known, "mtbf_seconds") or 0.0) if mtbf is None else mtbf,
        blocked_seconds=(measured(known, "blocked_seconds") or 0.0) if blocked is None else blocked,
        persist_seconds=(measured(known, "persist_seconds") or 0.0) if persist is None else persist,
        restart_seconds=(measured(known, "restart_seconds") or 0.0) if restart is None else restart,
    )
    try:
        made = plan(costs)
        interval = made.interval_seconds if ran is None else ran["interval_seconds"]
        played = (
            None if training is None else simulate(costs, interval_seconds=interval, useful_seconds=training, seed=seed)
        )
        best: tuple[Tried | None, Tried | None] = (None, None) if played is None else best_interval(costs)
    except CheckpointError as error:
        raise refused(error) from error
    document = {
        "costs": asdict(costs), "plan": made.document(), "measured": known or None,
        "simulated": None if played is None else played.document(),
        "best": None if best[0] is None else asdict(best[0]),
        "young_daly": None if best[1] is None else asdict(best[1]),
        "run": None if ran is None else ran["measured"],
    }  # fmt: skip

    def people() -> None:
        output.table(("", "seconds"), [
            ("a save takes at least (bytes / bandwidth)", f"{made.floor_seconds:.3f}"),
            ("from capture to durable", f"{made.persist_seconds:.3f}"),
            ("between two saves", f"{made.interval_seconds:.3f}"),
            ("lost by one interruption, on average", f"{made.loss_seconds:.3f}"),
        ])  # fmt: skip
        output.say(
            f"\nOf the time, {made.blocked_fraction:.2%} is blocked by saves, and {made.lost_fraction:.2%} is lost by "
            "interruptions. Asynchronous saving hides time, not bytes."
        )
        if played is not None:
            output.say(f"\nPlayed, with a save after each {interval:.3f} s of training:")
            compared(output, None if ran is None else ran["measured"], played.document())
            said_of_intervals(output, *best, made.interval_seconds)

    output.result(document, people=people)
