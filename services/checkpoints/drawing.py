"""The timeline of a cut as a picture: one SVG from one template, for light and dark pages, without a script.

What it shows, and how it is to be read:

- Down the line of the cut stands every quantity with its version: the cut is one place on all of them.
- Left of it is the last attempt in its order, not in time. Right of it are two stretches to scale, each to its own:
  the one in which training waits, by each contributor's own clock from when it knew the declaration, and the one from
  the release on, by the coordinator's. What nobody measured is drawn dashed and has no number.
- The picture carries the timeline as JSON in its metadata: what is drawn can be read by a program.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final
from xml.sax.saxutils import escape

from .reading import Found
from .timeline import Step, document, each_measured, measured, timeline

WIDTH: Final = 1000
_LEFT, _SAYS = 24, 128  # where names begin, and what they count
_FIRST, _LAST, _CUT, _RELEASE, _RIGHT = 388, 488, 520, 700, 964
_ROW, _TOP = 26, 116
_MOST: Final = 12  # contributors that are drawn: the coordinator and the slowest
_LONGEST: Final = 120  # of a line of text
_READ: Final = (
    "Left of the cut: an attempt in its order, not its time. Right of it: two stretches, each to a scale of its own.",
    "Amber: copied, since the save was known. Green: bytes durable, since the release. Dashed: nobody measured it.",
)

_TEMPLATE: Final = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" width="$width" height="$height" role="img" \
aria-labelledby="title desc">
<title id="title">$title</title>
<desc id="desc">$desc</desc>
<metadata>$metadata</metadata>
<style>
svg { --page: #ffffff; --ink: #1f2328; --quiet: #59636e; --line: #d1d9e0; --wait: #fff8e1; --cut: #0969da;
  --copy: #bf8700; --write: #1a7f37; --later: #cf222e; --on-cut: #ffffff; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #e6edf3; --quiet: #9198a1; --line: #3d444d;
  --wait: #211c10; --cut: #4493f8; --copy: #d29922; --write: #3fb950; --later: #f85149; --on-cut: #0d1117; } }
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); }
.head { font-size: 18px; font-weight: 600; }
.zone { font-size: 12px; font-weight: 600; }
.quiet { font-size: 11.5px; fill: var(--quiet); }
.mid { text-anchor: middle; }
.end { text-anchor: end; }
.pill { fill: var(--cut); }
.version { font-size: 11.5px; font-weight: 600; fill: var(--on-cut); text-anchor: middle; }
.still { stroke: var(--line); stroke-width: 1.5; }
.cut { stroke: var(--cut); stroke-width: 2; }
.edge { stroke: var(--line); stroke-width: 1; stroke-dasharray: 3 3; }
.event { fill: var(--ink); }
.copy { fill: var(--copy); }
.write { fill: var(--write); }
.train { fill: var(--quiet); }
.later { fill: var(--page); stroke: var(--later); stroke-width: 2; }
.said, .since { fill: var(--later); }
.inside { font-size: 11.5px; fill: var(--page); text-anchor: end; }
.unmeasured { fill: none; stroke: var(--quiet); stroke-dasharray: 3 3; }
</style>
<rect width="$width" height="$height" fill="var(--page)"/>
<rect x="$cut" y="$above" width="$waits" height="$below" fill="var(--wait)"/>
$body
</svg>
""")


def svg(found: Found) -> str:
    """The picture of a checkpoint's cut, as the text of an SVG file."""
    steps = timeline(found)
    quantities = list(_quantities(step for step in steps if step.phase == "before"))
    drawing = _Drawing(found=found, quantities=quantities)
    body = list(drawing.lines())
    manifest = found.manifest
    title = f"Checkpoint {found.sequence} of {manifest.run}: the timeline of its cut"
    return _TEMPLATE.substitute(
        width=WIDTH, height=drawing.height, title=_text(title), desc=_text(" ".join(_told(steps))),
        metadata=escape(json.dumps(document(found), sort_keys=True)), cut=_CUT, above=_TOP - 22,
        waits=_RELEASE - _CUT, below=drawing.bottom - _TOP + 22, body="\n".join(body),
    )  # fmt: skip


def _told(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        who = "" if step.who is None else f" of contributor {step.who}"
        yield f"{step.what}{who}{'' if step.version is None else f' {step.version}'}: {step.says}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    name: str
    says: str
    version: str


def _quantities(steps: Iterable[Step]) -> Iterator[_Quantity]:
    """One line for each: a quantity that contributors have for themselves stands from its lowest to its highest."""
    own: dict[str, list[Step]] = {}
    for step in steps:
        own.setdefault(step.what, []).append(step)
    for name, each in own.items():
        versions = sorted({step.version for step in each if step.version is not None})
        text = "-" if not versions else "..".join(map(str, dict.fromkeys((versions[0], versions[-1]))))
        yield _Quantity(name=name, says=each[0].says, version=text)


@dataclass(slots=True, kw_only=True)
class _Drawing:
    found: Found
    quantities: Sequence[_Quantity]

    @property
    def contributors(self) -> list[str]:
        """Who is drawn: everybody, or where they are too many the coordinator and who was slowest."""
        everybody = list(self.found.contributions)
        if len(everybody) <= _MOST:
            return everybody
        took = each_measured(self.found.manifest.timing, "capture_seconds")
        slowest = sorted(everybody[1:], key=lambda who: -took.get(who, 0.0))[: _MOST - 1]
        return [everybody[0], *(who for who in everybody if who in slowest)]

    @property
    def lower(self) -> int:
        """Where the contributors begin."""
        return _TOP + len(self.quantities) * _ROW + 20

    @property
    def bottom(self) -> int:
        """Where the lanes end."""
        return self.lower + (len(self.contributors) + 2) * _ROW + (18 if self.left_out else 0)

    @property
    def left_out(self) -> int:
        """How many contributors are not drawn."""
        return len(self.found.contributions) - len(self.contributors)

    @property
    def height(self) -> int:
        """Of the whole picture."""
        return self.bottom + 76

    def lines(self) -> Iterator[str]:
        """Everything between the background and the end."""
        yield from self._head()
        yield from self._edges()
        yield from self._staircase()
        yield from self._lanes()
        yield from self._foot()

    def _head(self) -> Iterator[str]:
        manifest = self.found.manifest
        yield _write(_LEFT, 36, f"Checkpoint {self.found.sequence} of {manifest.run}", "head")
        many = len(self.found.contributions)
        serves = " and ".join(manifest.profiles) or "no profile"
        told = f"{many} contributor{'' if many == 1 else 's'}, {manifest.data_bytes:,} bytes on disk, for {serves}"
        yield _write(_LEFT, 58, f"The cut: {manifest.boundary}", "")
        yield _write(_RIGHT, 36, told, "quiet end")
        y = _TOP - 30
        yield _write((_FIRST + _CUT) // 2 - 16, y, "in the cut", "zone mid")
        yield _write((_CUT + _RELEASE) // 2, y, f"training waits{_of(self._blocked)}", "zone mid")
        yield _write((_RELEASE + _RIGHT) // 2, y, "not in the cut", "zone mid")

    @property
    def _blocked(self) -> float | None:
        return measured(self.found.manifest.timing, "blocked_seconds")

    def _edges(self) -> Iterator[str]:
        above = _TOP - 22
        yield f'<line class="cut" x1="{_CUT}" y1="{above}" x2="{_CUT}" y2="{self.bottom}"/>'
        yield f'<line class="edge" x1="{_RELEASE}" y1="{above}" x2="{_RELEASE}" y2="{self.bottom}"/>'

    def _staircase(self) -> Iterator[str]:
        stride = (_LAST - _FIRST) / max(1, len(self.quantities) - 1)
        for number, each in enumerate(self.quantities):
            y, x = _TOP + number * _ROW, _FIRST + number * stride
            wide = 14 + 7.2 * len(each.version)
            yield _write(_LEFT, y + 4, each.name, "")
            yield _write(_SAYS, y + 4, each.says, "quiet")
            yield f'<line class="still" x1="{x:.1f}" y1="{y}" x2="{_RELEASE}" y2="{y}"/>'
            yield f'<circle class="event" cx="{x:.1f}" cy="{y}" r="4"/>'
            yield f'<rect class="pill" x="{_CUT - wide / 2:.1f}" y="{y - 9}" width="{wide:.1f}" height="18" rx="9"/>'
            yield _write(_CUT, y + 4, each.version, "version")

    def _lanes(self) -> Iterator[str]:
        manifest, timing = self.found.manifest, self.found.manifest.timing
        captures, records = each_measured(timing, "capture_seconds"), each_measured(timing, "record_seconds")
        waits = _Scale(_CUT, _RELEASE, [*captures.values(), measured(timing, "release_seconds")])
        commit, later = measured(timing, "persist_seconds"), measured(timing, "next_update_seconds")
        goes = _Scale(_RELEASE, _RIGHT - 64, [*records.values(), commit, later])
        y = self.lower
        yield from _lane(y, "training", "held until all have captured")
        yield f'<rect class="train" x="{_FIRST}" y="{y - 3}" width="{_CUT - _FIRST}" height="6"/>'
        yield f'<rect class="train" x="{_RELEASE}" y="{y - 3}" width="{_RIGHT - _RELEASE}" height="6"/>'
        attempts = manifest.versions.get("attempts")
        named = "the next attempt" if attempts is None else f"attempt {attempts + 1}"
        x = goes.at(later)
        yield f'<rect class="since" x="{_RELEASE}" y="{y - 3}" width="{x - _RELEASE:.1f}" height="6"/>'
        yield f'<circle class="later" cx="{x:.1f}" cy="{y}" r="5"/>'
        told = f"first mutation: {named}{'' if later is None else f', by +{_time(later)}'}"
        yield _write(_RELEASE + 6, y - 10, told, "quiet said")
        for who in self.contributors:
            y += _ROW
            items = self.found.contributions[who].items
            nbytes = sum(item.nbytes for item in items)
            yield from _lane(y, f"contributor {who}", f"{len(items)} items, {nbytes:,} bytes copied")
            yield from _bar(y, waits, captures.get(who), "copy", "")
            yield from _bar(y, goes, records.get(who), "write", "+")
        if self.left_out:
            yield _write(_LEFT, y + 22, f"and {self.left_out} more, none of which took longer to copy", "quiet")
            y += 18
        y += _ROW
        yield from _lane(y, "the log", "one record makes it a checkpoint")
        x = goes.at(commit) if commit is not None else _RIGHT - 64
        yield f'<path class="pill" d="M{x:.1f} {y - 7} l7 7 -7 7 -7 -7 z"/>'
        told = f"slot {self.found.sequence}{'' if commit is None else f', +{_time(commit)}'}"
        yield _write(x - 12, y + 4, told, "quiet end")

    def _foot(self) -> Iterator[str]:
        y = self.bottom
        yield _write(_CUT + 6, y + 16, "the cut", "quiet")
        yield _write(_RELEASE + 6, y + 16, "released: training goes on", "quiet")
        for row, text in enumerate(_READ):
            yield _write(_LEFT, y + 44 + 18 * row, text, "quiet")


class _Scale:
    """Seconds to places: the longest of them ends the stretch."""

    def __init__(self, first: int, last: int, seconds: Iterable[float | None]) -> None:
        self.first, self.last = first, last
        self._longest = max((each for each in seconds if each is not None), default=0.0)

    def at(self, seconds: float | None) -> float:
        """Where a moment is; what nobody measured is at the beginning, and what takes no time too."""
        if seconds is None or not self._longest:
            return self.first
        return self.first + (self.last - self.first) * seconds / self._longest


def _lane(y: int, name: str, says: str) -> Iterator[str]:
    yield _write(_LEFT, y + 4, name, "")
    yield _write(_SAYS, y + 4, says, "quiet")


def _bar(y: int, scale: _Scale, seconds: float | None, kind: str, sign: str) -> Iterator[str]:
    first = scale.first
    if seconds is None:
        yield f'<rect class="unmeasured" x="{first}" y="{y - 4}" width="{scale.last - first:.1f}" height="8" rx="2"/>'
        return
    wide = max(2.0, scale.at(seconds) - first)
    yield f'<rect class="{kind}" x="{first}" y="{y - 7}" width="{wide:.1f}" height="14" rx="2"/>'
    told, end = f"{sign}{_time(seconds)}", first + wide
    inside = end + 8 + 7 * len(told) > scale.last + (64 if sign else 0)
    yield _write(end - 6 if inside else end + 6, y + 4, told, "inside" if inside else "quiet")


def _of(seconds: float | None) -> str:
    return "" if seconds is None else f" {_time(seconds)}"


def _time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            digits = max(0, 2 - int(math.log10(seconds / size)))
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _write(x: float, y: float, text: str, kind: str) -> str:
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{_text(shown)}</text>'


def _text(text: str) -> str:
    """What a picture may show: no control character, which XML has no place for."""
    return escape("".join(each if each.isprintable() else "?" for each in text))
