"""When another generation of an effect may be decided: the pure rule.

Refused while any former generation may still do something, or stands: whoever redoes a thing that is done, doubles it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.effects.keys import LAST_GENERATION
from services.effects.people import problem_with_name, same_person
from services.effects.records import EffectRow
from services.effects.states import EffectState

# Why a release is refused whose units are back: somebody gave them back before us, or they were only held and time did.
BACK_ALREADY = frozenset({"invalid-transition", "hold-expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """One former generation, as the journal has it.

    Attributes:
        row: None where the journal has none.
        release: the row of its release, if there is one.
        late_stands: a late report that it is committed is believed, and nobody has written it off.
        asserted_by: who asserted its end, where no receipt settled it.
        release_asserted_by: who asserted the end of its release, likewise.
    """

    generation: int
    row: EffectRow | None
    release: EffectRow | None = None
    late_stands: bool = False
    asserted_by: str = ""
    release_asserted_by: str = ""

    @property
    def given_back(self) -> bool:
        """Whether what it took is back, as a receipt or a person says."""
        release = self.release
        if release is None:
            return False
        if release.receipt is None:
            return release.state is EffectState.COMMITTED and bool(self.release_asserted_by)
        return release.state is EffectState.COMMITTED or release.receipt.reason in BACK_ALREADY


def refusal(former: Sequence[Former], *, by: str, second: str = "") -> str:
    """Why no further generation may be decided, for people; empty where it may.

    Args:
        former: every generation so far, the first one first.
        by: who wants it.
        second: who else does, where a former end was only asserted.
    """
    if len(former) >= LAST_GENERATION:
        return f"generation {LAST_GENERATION} is the last one: a further try is an effect with another name"
    for one in former:
        why = _bars(one)
        if why:
            return f"generation {one.generation} {why}"
    asserted = [(f"generation {one.generation}", one.asserted_by) for one in former if one.asserted_by]
    asserted += [
        (f"the release of generation {one.generation}", one.release_asserted_by)
        for one in former
        if one.release_asserted_by
    ]
    if asserted and not _is_another(second, (by, *(who for _, who in asserted))):
        said = ", ".join(f"{what} by {who}" for what, who in asserted)
        return f"an end was only asserted ({said}), and no receipt says so: it needs a second person (--second NAME)"
    return ""


def _is_another(second: str, first: Iterable[str]) -> bool:
    return not problem_with_name(second) and not any(same_person(second, other) for other in first)


def _bars(one: Former) -> str:
    row = one.row
    if row is None:
        return "has no row in the journal: nobody knows what became of it"
    if not row.state.terminal:
        return f"is {row.state.replace('_', ' ')}: settle it first (give-up, or resolve)"
    if row.alarmed:
        return "has a late observation that nobody has dealt with: accept, resolve or write-off comes first"
    stands = row.state is EffectState.COMMITTED or one.late_stands
    if stands and not one.given_back:
        return "is committed and not released: release it first, or give the second effect a name of its own"
    return ""
