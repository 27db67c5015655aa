"""The one link to effects: a journal's watermark, kept by value beside a checkpoint.

What this module guarantees:

- It reads what somebody hands over and opens no journal. Restoring a checkpoint repeats arithmetic and undoes no
  effect: the number of effects undone is always 0, and what was committed after the cut is named.
- A journal that is older than the watermark that was kept (`JournalBehind`), another one, or one whose history at that
  seal is another (`JournalForked`) is refused: it would answer a key that is taken as if nobody had used it.
- What was pending at the cut and is pending still is refused: its outcome is unknown, and training would run over it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .errors import Incompatible, JournalBehind, JournalForked, ManifestInvalid

STATEMENT: Final = "restore does not undo effects"
_JOURNAL = re.compile(r"[0-9a-f]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST = 2**63
_LONGEST = 512  # characters of a key or of the name of a reservation
_MOST_KEYS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """A seal of a journal: its number, and the digest that chains everything up to it."""

    number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect that a journal has committed.

    Attributes:
        key: by which it is asked for again, and answered the same.
        reservation_id: what it reserved, if it did.
    """

    key: str
    scope: str
    name: str
    receipt_id: str | None
    reservation_id: str | None

    @property
    def said(self) -> str:
        """What stands for it in a report: what it reserved, otherwise its receipt, otherwise its key."""
        return self.reservation_id or self.receipt_id or self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """What `counterfoil journal watermark --json` prints, as much of it as a checkpoint needs.

    Attributes:
        seal: the journal's last one; None in a journal that has none.
        at: the seal that `--at` asked for.
        pending: the keys whose outcome is not known.
        committed_since: what was committed after `at`.
        last_entry_id: its last entry, which no seal may cover yet: also there pending keys are known.
    """

    journal_id: str
    seal: Seal | None
    at: Seal | None
    pending: tuple[str, ...]
    committed_since: tuple[Effect, ...]
    last_entry_id: int = 0

    def kept(self) -> dict[str, Any]:
        """What a manifest keeps of it, at the cut: where the journal stood, and what was pending."""
        return {
            "journal_id": self.journal_id,
            "seal": None if self.seal is None else {"number": self.seal.number, "digest": self.seal.digest},
            "pending": list(self.pending),
            "last_entry_id": self.last_entry_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NotUndone:
    """The report of a restore about effects.

    Attributes:
        effects: committed after the cut; they stand.
        pending: what was pending at the cut and is still.
        undone: how many effects the restore has undone.
    """

    effects: tuple[Effect, ...]
    pending: tuple[str, ...] = ()
    undone: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        names = ("key", "scope", "name", "receipt_id", "reservation_id")
        return {
            "statement": STATEMENT,
            "undone": self.undone,
            "not_undone": [{name: getattr(effect, name) for name in names} for effect in self.effects],
            "pending": list(self.pending),
        }

    def lines(self) -> tuple[str, ...]:
        """For people."""
        said = ", ".join(effect.said for effect in self.effects) or "nothing was committed since"
        lines = [f"not undone: {said}", f"undone: {self.undone} ({STATEMENT})"]
        return (*lines, f"still pending: {', '.join(self.pending)}") if self.pending else tuple(lines)


def read_watermark(raw: object) -> Watermark:
    """A watermark, from what `counterfoil journal watermark --json` printed or from what a manifest kept.

    Raises:
        ManifestInvalid: it is neither.
    """
    document = _object(raw, "the watermark")
    pending = _list(document.get("pending", ()), "pending")
    last_entry_id = document.get("last_entry_id", 0)
    if type(last_entry_id) is not int or not 0 <= last_entry_id < _LARGEST:
        raise ManifestInvalid(f"last_entry_id of the watermark is {last_entry_id!r:.80}, which no journal prints.")
    return Watermark(
        journal_id=_text(document.get("journal_id"), "journal_id", _JOURNAL),
        seal=_seal(document.get("seal"), "seal"),
        at=_seal(document.get("at"), "at"),
        pending=tuple(_text(key, "a pending key") for key in pending),
        committed_since=tuple(_effect(each) for each in _list(document.get("committed_since", ()), "committed_since")),
        last_entry_id=last_entry_id,
    )


def compare(kept: Watermark, now: Watermark, *, allow_pending: bool = False) -> NotUndone:
    """What a restore has to say about effects, or why it may not go on.

    Args:
        kept: the checkpoint's.
        now: the same journal's of this moment, printed with `--at` the kept seal.
        allow_pending: go on over keys that were pending at the cut and are pending still.

    Raises:
        JournalForked: another journal, or another history up to the kept seal.
        JournalBehind: a journal that has not come as far as it had at the cut.
        Incompatible: keys that were pending at the cut are pending still; or `now` does not look from the kept seal.
    """
    if now.journal_id != kept.journal_id:
        raise JournalForked(
            f"The checkpoint's watermark is of journal {kept.journal_id}, and this one is {now.journal_id}. "
            "Nothing was restored and nothing is lost; give the watermark of the journal of this run."
        )
    if kept.seal is not None:
        _check_history(kept.seal, now)
    elif now.at is not None:
        raise Incompatible("The checkpoint was cut before the journal's first seal: print the watermark with --at 0.")
    if now.last_entry_id < kept.last_entry_id:
        raise _behind(f"entry {kept.last_entry_id}", f"entry {now.last_entry_id}")
    pending = tuple(key for key in kept.pending if key in set(now.pending))
    if pending and not allow_pending:
        raise Incompatible(
            f"The outcome of {', '.join(pending)} was unknown at the cut and still is. Nothing was restored and "
            "nothing is lost; reconcile first (`counterfoil reconcile`), or say that pending effects are allowed.",
            differences=tuple(f"pending: {key}" for key in pending),
        )
    return NotUndone(effects=now.committed_since, pending=pending)


def _check_history(kept: Seal, now: Watermark) -> None:
    newest = 0 if now.seal is None else now.seal.number
    if newest < kept.number:
        raise _behind(f"seal {kept.number}", f"seal {newest}")
    # A journal that has not gone on since needs no --at: its last seal is the one that was kept.
    known = now.seal if now.at is None and newest == kept.number else now.at
    if known is None or known.number != kept.number:
        raise Incompatible(
            f"The watermark does not look from seal {kept.number}, where the checkpoint was cut. Nothing was restored; "
            f"print it with `counterfoil journal watermark --at {kept.number} --json`."
        )
    if known.digest != kept.digest:
        raise JournalForked(
            f"Seal {kept.number} of this journal has digest {known.digest}, and at the cut it had {kept.digest}: its "
            "history is another one. Nothing was restored and nothing is lost; find the journal of the run."
        )


def _behind(kept: str, now: str) -> JournalBehind:
    return JournalBehind(
        f"At the cut the journal had come to {kept}; this one has come to {now}: it was put back to an older copy. "
        "What it does not know of is done all the same. Nothing was restored; bring the journal forward (`counterfoil "
        "reconcile`) or take the copy that is newer."
    )


def _object(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ManifestInvalid(
            f"{what} is no object with members: not what `counterfoil journal watermark --json` prints."
        )
    return raw


def _list(raw: object, what: str) -> Sequence[Any]:
    if not isinstance(raw, list | tuple) or len(raw) > _MOST_KEYS:
        raise ManifestInvalid(f"{what} of the watermark is no list of at most {_MOST_KEYS} members.")
    return raw


def _text(raw: object, what: str, form: re.Pattern[str] | None = None) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= _LONGEST or (form is not None and not form.fullmatch(raw)):
        raise ManifestInvalid(f"{what} of the watermark is {raw!r:.80}, which no journal prints.")
    return raw


def _seal(raw: object, what: str) -> Seal | None:
    if raw is None:
        return None
    document = _object(raw, f"{what} of the watermark")
    number = document.get("number")
    if type(number) is not int or not 1 <= number < _LARGEST:
        raise ManifestInvalid(f"{what}.number of the watermark is {number!r:.80}, which no seal has.")
    return Seal(number=number, digest=_text(document.get("digest"), f"{what}.digest", _DIGEST))


def _effect(raw: object) -> Effect:
    document = _object(raw, "an effect of the watermark")

    def optional(name: str) -> str | None:
        return None if document.get(name) is None else _text(document[name], name)

    return Effect(
        key=_text(document.get("key"), "a key"),
        scope=_text(document.get("scope"), "a scope"),
        name=_text(document.get("name"), "a name"),
        receipt_id=optional("receipt_id"),
        reservation_id=optional("reservation_id"),
    )
