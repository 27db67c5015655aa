"""The timeline of a saved cut: what had happened when it was taken, each quantity with its version, in order.

A cut is right where every quantity stands at the same place. This shows the place: what the last attempt did, what each
contributor staged, when training was let go, and the first mutation that came later and is not in the checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from .reading import Found

LONGEST_SECONDS: Final = 1e9  # what says more was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the timeline.

    Attributes:
        phase: before (in the cut), capture (training waits), after (not in the cut).
        what: the quantity, or what was done.
        who: the contributor, where it is one's own.
        version: at which the quantity stands; None where it has none.
        says: for people.
        seconds: since the declaration while training waits, since the release after it; None where nobody measured it.
    """

    phase: str
    what: str
    who: str | None
    version: int | None
    says: str
    seconds: float | None = None


# Of each version: what it counts, in the order in which an attempt moves them.
_QUANTITIES = (
    ("fetched", "samples read ahead: informational"),
    ("cursor", "samples consumed by the whole run"),
    ("draws", "draws of the run's one sample stream"),
    ("forwards", "forward passes, which may touch buffers"),
    ("in_flight", "microbatches in a pipeline"),
    ("microbatch", "position in the open accumulation window"),
    ("skips", "attempts skipped by the scaler"),
    ("updates", "updates applied"),
    ("scheduler", "scheduler steps"),
    ("attempts", "attempts: updates and skips"),
)


def timeline(found: Found) -> tuple[Step, ...]:
    """The steps of a checkpoint's cut, in order."""
    return tuple(_steps(found))


def _steps(found: Found) -> Iterator[Step]:
    manifest, timing = found.manifest, found.manifest.timing
    for name, says in _QUANTITIES:
        if name in manifest.versions:
            yield Step(phase="before", what=name, who=None, version=manifest.versions[name], says=says)
        for who, version in sorted(manifest.per_contributor.get(name, {}).items()):
            yield Step(phase="before", what=name, who=who, version=version, says=f"{says}, this contributor's own")
    for role in sorted(manifest.absent):
        yield Step(phase="before", what=role, who=None, version=None, says="absent, as the contract allows")
    yield Step(phase="capture", what="boundary", who=None, version=None, says=manifest.boundary)
    captures, records = each_measured(timing, "capture_seconds"), each_measured(timing, "record_seconds")
    for who, contribution in found.contributions.items():
        staged = sum(item.nbytes for item in contribution.items)
        says = f"staged {len(contribution.items)} items, {staged:,} bytes, and every source was as before"
        yield Step(
            phase="capture", what="staging", who=who, version=contribution.versions.get("updates"),
            says=says + _after(captures.get(who)), seconds=captures.get(who),
        )  # fmt: skip
    yield Step(
        phase="capture", what="release", who=None, version=None,
        says="all have captured: training may go on" + _after(measured(timing, "blocked_seconds")),
        seconds=measured(timing, "release_seconds"),
    )  # fmt: skip
    attempts, later = manifest.versions.get("attempts"), measured(timing, "next_update_seconds")
    yield Step(
        phase="after", what="first later mutation", who=None, version=None if attempts is None else attempts + 1,
        says="the next attempt, at the release or later: none of its bytes is in the checkpoint"
        if later is None else f"the next attempt: none of its bytes is here; done {later:.3f} s after the release",
        seconds=later,
    )  # fmt: skip
    for who, seconds in records.items():
        yield Step(
            phase="after", what="record", who=who, version=None, says=f"its bytes are durable{_after(seconds)}",
            seconds=seconds,
        )  # fmt: skip
    persisted = measured(timing, "persist_seconds")
    yield Step(
        phase="after", what="commit", who=manifest.contributors[0], version=found.sequence,
        says="the log's record was linked" + ("" if persisted is None else f", {persisted:.3f} s after the release"),
        seconds=persisted,
    )  # fmt: skip


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f", after {seconds:.3f} s"


def measured(timing: Mapping[str, Any], name: str) -> float | None:
    """A time that a manifest states, where it is one: nothing else in a manifest depends on it."""
    value = timing.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LONGEST_SECONDS:
        return None
    return float(value)


def each_measured(timing: Mapping[str, Any], name: str) -> dict[str, float]:
    """The times of contributors that a manifest states."""
    stated = timing.get(name)
    if not isinstance(stated, Mapping):
        return {}
    return {who: seconds for who in stated if (seconds := measured(stated, who)) is not None}


def document(found: Found) -> dict[str, Any]:
    """The timeline as JSON has it."""
    return {
        "sequence": found.sequence,
        "boundary": found.manifest.boundary,
        "timing": dict(found.manifest.timing),
        "steps": [asdict(step) for step in timeline(found)],
    }


_MARKS = {"before": "o", "capture": "=", "after": "."}
_HEADS = {"before": "in the cut", "capture": "training waits", "after": "not in the cut"}


def drawn(steps: Sequence[Step]) -> list[str]:
    """The timeline as lines of text, from the earliest on top."""
    names = [step.what if step.who is None else f"{step.what} ({step.who})" for step in steps]
    wide = max(map(len, names), default=0)
    numbers = ["" if step.version is None else str(step.version) for step in steps]
    digits = max(map(len, numbers), default=0)
    lines: list[str] = []
    phase = ""
    for step, name, number in zip(steps, names, numbers, strict=True):
        if step.phase != phase:
            phase = step.phase
            lines.append(f"--+-- {_HEADS[phase]}")
        lines.append(f"  {_MARKS[phase]}   {name:<{wide}}  {number:>{digits}}  {step.says}")
    return lines
