"""The timeline of a saved cut: what had happened when it was taken, each quantity with its version, in order.

A cut is right where every quantity stands at the same place. This shows the place: what the last attempt did, what each
contributor staged, when training was let go, and the first mutation that came later and is not in the checkpoint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .reading import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the timeline.

    Attributes:
        phase: before (in the cut), capture (training waits), after (not in the cut).
        what: the quantity, or what was done.
        who: the contributor, where it is one's own.
        version: at which the quantity stands; None where it has none.
        says: for people.
    """

    phase: str
    what: str
    who: str | None
    version: int | None
    says: str


# Of each version: what it counts, and what it says of the cut.
_QUANTITIES = (
    ("forwards", "forward passes, which may touch buffers"),
    ("microbatch", "position in the open accumulation window"),
    ("in_flight", "microbatches in a pipeline"),
    ("attempts", "attempts: updates and skips"),
    ("updates", "updates applied"),
    ("skips", "attempts skipped by the scaler"),
    ("scheduler", "scheduler steps"),
    ("cursor", "samples consumed by the whole run"),
    ("fetched", "samples read ahead: informational"),
    ("draws", "draws of the run's one sample stream"),
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
    for who, contribution in found.contributions.items():
        staged = sum(item.nbytes for item in contribution.items)
        says = f"staged {len(contribution.items)} items, {staged:,} bytes, and every source was as before"
        yield Step(phase="capture", what="staging", who=who, version=contribution.versions.get("updates"), says=says)
    blocked, persisted = timing.get("blocked_seconds"), timing.get("persist_seconds")
    yield Step(
        phase="capture", what="release", who=None, version=None,
        says="all have captured: training may go on" + ("" if blocked is None else f", after {blocked:.3f} s"),
    )  # fmt: skip
    attempts = manifest.versions.get("attempts")
    yield Step(
        phase="after", what="first later mutation", who=None, version=None if attempts is None else attempts + 1,
        says="the next attempt, at the release or later: none of its bytes is in the checkpoint",
    )  # fmt: skip
    yield Step(
        phase="after", what="commit", who=manifest.contributors[0], version=found.sequence,
        says="the log's record was linked" + ("" if persisted is None else f", {persisted:.3f} s after the release"),
    )  # fmt: skip


def document(found: Found) -> dict[str, Any]:
    """The timeline as JSON has it."""
    return {
        "sequence": found.sequence,
        "boundary": found.manifest.boundary,
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
