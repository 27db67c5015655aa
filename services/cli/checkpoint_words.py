"""What `checkpoint plan` and `train --interrupt-every` both say: measured beside expected, and the best interval."""

import json
from collections.abc import Mapping
from typing import Any, TextIO

import click

from services.checkpoints.plan import Tried
from services.checkpoints.timeline import measured
from services.cli.output import Output

_KINDS = ("useful", "redone", "blocked", "restart", "total")
_COSTS = ("mtbf_seconds", "blocked_seconds", "persist_seconds", "restart_seconds")


def compared(output: Output, ran: Mapping[str, Any] | None, expected: Mapping[str, Any] | None) -> None:
    """Say the account of a run beside what was to be expected; either may not be there."""
    if expected is None:
        output.say("What was to be expected: no progress, by these costs.")
    columns = [(name, each) for name, each in (("measured", ran), ("expected", expected)) if each is not None]
    rows = [(f"{kind} seconds", *(f"{each[f'{kind}_seconds']:.2f}" for _, each in columns)) for kind in _KINDS]
    rows += [
        ("retained", *(_part(each) for _, each in columns)),
        *((name, *(str(each[name]) for _, each in columns)) for name in ("interruptions", "checkpoints")),
    ]
    output.table(("", *(name for name, _ in columns)), rows)


def _part(account: Mapping[str, Any]) -> str:
    trained = account["useful_seconds"] + account["redone_seconds"]
    return f"{account['useful_seconds'] / trained:.1%} of what was trained" if trained else "-"


def said_of_intervals(output: Output, best: Tried | None, young: Tried | None, young_seconds: float) -> None:
    """Say which interval lost least when it was played, beside Young's and Daly's."""
    if best is None:
        output.say("No interval between saves makes progress by these costs.")
        return
    theirs = "no progress" if young is None else f"{young.overhead:.2%} overhead"
    output.say(
        f"Best interval found by playing these costs: {best.interval_seconds:.3f} s, {best.overhead:.2%} overhead with "
        f"restarts; Young's and Daly's: {young_seconds:.3f} s, {theirs}."
    )


def measured_run(_ctx: click.Context, _param: click.Parameter, file: TextIO | None) -> dict[str, Any] | None:
    """What `train --interrupt-every --json` printed."""
    if file is None:
        return None
    told: Any = None
    account: Any = None
    costs: Any = None
    try:
        told = json.load(file)
        account, costs = told["measured"], told["costs"]
        numbers = [*(measured(account, f"{kind}_seconds") for kind in _KINDS), measured(told, "interval_seconds")]
        numbers += [measured(costs, name) for name in _COSTS]
        whole = None not in numbers and all(type(account[name]) is int for name in ("interruptions", "checkpoints"))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise click.BadParameter(f"{file.name} is not what `train --interrupt-every --json` prints.")
    kept = {name: costs[name] for name in _COSTS}
    return {"measured": account, "costs": kept, "interval_seconds": told["interval_seconds"]}
