"""What a provider of the contract can do, one thing at a time; and a check of one of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from services.conformance.bench import Bench


class Capability(StrEnum):
    """In the order in which they are checked: what others need comes first."""

    STOCK = "stock"  # one transaction per effect; balances, ledger and reservations agree
    DEDUPE = "dedupe"  # the same key, one effect
    REJECTIONS = "rejections"  # a refused key stays refused
    LOOKUP = "lookup"  # a receipt is found by its key, one or many
    VOID = "void"  # a key can be closed
    REPLAY = "replay"  # a stored answer comes again byte for byte
    NOT_AFTER = "not_after"  # the provider itself judges the deadline
    SUPERSEDES = "supersedes"  # a redo closes its former generations, or is refused
    HOLDS = "holds"  # units held for a time; confirm and expiry
    FEED = "feed"  # receipts are listed in the order of commits
    DIGESTS = "digests"  # counts and digests of ranges of keys
    STRICTNESS = "strictness"  # what two parsers could read differently is refused
    RECEIPTS = "receipts"  # every receipt has every member, and each is what it should be
    PROBLEMS = "problems"  # problem documents, headers, and the order of checks


Run = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One property, seen or not seen in one story that is told to the provider."""

    capability: Capability
    name: str
    sentence: str  # of docs/effects-api.md, word for word
    needs: tuple[Capability, ...]  # what the story is told with; where it lacks, nothing can be said here
    run: Run


def check(capability: Capability, sentence: str, *needs: Capability) -> Callable[[Run], Check]:
    """Make a check of a function; its name is the function's."""

    def make(run: Run) -> Check:
        name = run.__name__.strip("_").replace("_", " ")
        return Check(capability=capability, name=name, sentence=sentence, needs=needs, run=run)

    return make
