"""A training run as the commands open it: what they all ask for, and what is wrong with it as a finding."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from services.checkpoints import reading
from services.checkpoints.errors import CheckpointError, Incompatible
from services.checkpoints.layout import Run
from services.checkpoints.log import check_no_gap
from services.checkpoints.reading import Found
from services.checkpoints.records import check_id
from services.checkpoints.reference import RUN
from services.cli.output import CommandError, ExitCode, Output


class Folder(click.Path):
    """A folder's path; an empty one is a variable that was not set, and not the folder one stands in."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if value == "":
            self.fail("the path is empty: is a variable not set?", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number within bounds, which NaN and infinity are not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number to reckon with.", param, ctx)
        return number


root_option = click.option("--root", type=Folder(), required=True, help="The store's folder.")
run_option = click.option("--run", "run_id", default=RUN, show_default=True, help="The run's id.")
sequence_option = click.option(
    "--sequence", type=click.IntRange(1), metavar="N", help="This one; otherwise the newest."
)
take_over_option = click.option(
    "--take-over", is_flag=True, help="Also where a trainer holds the run: it is fenced, its next save is refused."
)


@contextmanager
def opened(root: Path, run_id: str) -> Iterator[Run]:
    """A run's folders, and what is wrong with its checkpoints as a finding."""
    check_run(run_id)
    try:
        run = Run.open(root, run_id)
    except FileNotFoundError as error:
        raise CommandError(_no_run(root, run_id, error)) from error
    except CheckpointError as error:
        raise refused(error) from error
    except OSError as error:
        raise unreadable(error) from error
    with run:
        try:
            yield run
        except CheckpointError as error:
            raise refused(error) from error
        except OSError as error:
            raise unreadable(error) from error


def check_run(run_id: str) -> None:
    """Refuse a --run that is no run's id, as wrong use."""
    try:
        check_id(run_id, "run")
    except CheckpointError as error:
        raise CommandError(str(error)) from error


def check_place(folder: Path) -> None:
    """Refuse a folder that cannot be made, or written into, as wrong use; it is said before anything is read."""
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return
    why = "is not a folder that this user can write into" if there.is_dir() else "is no folder"
    raise CommandError(f"{there} {why}: name another place. Nothing was written.")


def _no_run(root: Path, run_id: str, error: FileNotFoundError) -> str:
    runs = root / "runs"
    there = sorted(each.name for each in runs.iterdir()) if runs.is_dir() else []
    if run_id in there:
        return f"{runs / run_id} lacks {error.filename}: the run is not whole. Nothing was changed; bring it back."
    if there:
        return f"{root} has no run {run_id}: give one of {', '.join(there)} as --run. Nothing was changed."
    what = "holds no runs" if root.is_dir() else "is not there"
    return f"{root} {what}: is it the folder that the trainer was given? Nothing was changed."


def unreadable(error: OSError) -> CommandError:
    """What the system refuses, as a finding: counterfoil is not at fault, and the store may be whole."""
    details = {"error": type(error).__name__}
    return CommandError(
        f"The system refused ({what_system_said(error)}). What is committed is as it was: run this as the user who "
        "trains, and look for a full or read-only disk.",
        ExitCode.FOUND,
        details=details,
    )


def what_system_said(error: OSError) -> str:
    """Of which file, and what."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def refused(error: CheckpointError) -> CommandError:
    """What the store refuses, as a finding that programs know by its name."""
    details: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, Incompatible) and error.differences:
        details["differences"] = list(error.differences)
    return CommandError(f"{type(error).__name__}: {error}", ExitCode.FOUND, details=details)


def chosen(
    run: Run, sequence: int | None, profile: str = "resume", *, before: int | None = None
) -> tuple[Found, tuple[reading.Skipped, ...]]:
    """One checkpoint: the one that was asked for, or the newest that serves the profile.

    Raises:
        CommandError: there is none.
    """
    if sequence is not None:
        found = reading.load(run, sequence)
        reading.check_profile(found, profile)
        return found, ()
    check_no_gap(run)
    newest, skipped = reading.latest(run, profile=profile, before=before)
    if newest is None:
        passed = "".join(f"\n  {each.sequence}: {each.reason}" for each in skipped)
        older = "" if before is None else f" older than {before}"
        raise CommandError(f"Run {run.run_id} has no checkpoint{older} that serves {profile}.{passed}", ExitCode.FOUND)
    return newest, skipped


def tell_skipped(output: Output, skipped: tuple[reading.Skipped, ...]) -> None:
    """Note that what is shown is not the newest, and why."""
    for each in skipped:
        output.note(f"passed over {each.sequence}: {each.reason}")
