"""A restore is one agreement: one checkpoint, verified by all, swapped in by all or by nobody.

    offer.<n> -> vote.<n> (all) -> verdict.<n>, and again with an older one while any contributor finds damage

What this module guarantees:

- The coordinator names a checkpoint by sequence and digest; each contributor verifies its part of that one.
- Damage that one contributor alone sees moves all to the next older checkpoint, and all say so.
- What does not fit (another shape, setting, layout) is no damage: all get the same error, and nobody falls back.
- Everything is read into new arrays and verified by all before anybody changes a live one.
- Items that nobody takes are verified by the coordinator.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .boxes import Box, check_tiling
from .contract import Contract, check_same_contract
from .delays import At
from .dtypes import Array, name_of
from .errors import (
    CheckpointError,
    CoordinatorLost,
    CoverageError,
    Damaged,
    DigestMismatch,
    JournalBehind,
    LayoutChanged,
    ManifestInvalid,
    Retired,
)
from .fit import Target, check_fit
from .group import COORDINATOR, MEET, Body, Group, error_body, error_of, missing, told_by
from .layout import Run
from .reading import Found, Skipped, Want, latest, load, read_items, verify_items
from .saving import Deadlines, Facts, contributor_id
from .state import State, differing
from .watermark import compare, read_watermark

FALLS_BACK: Final = (Damaged, Retired)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the caller asks of a restore.

    Attributes:
        profile: resume or weights.
        strict: raise damage instead of moving to an older checkpoint.
        allow: differences that are wanted, by name: config.schedule, lineage.data.
        layout_policy: fit.FRESH: what is each contributor's own begins anew in another layout; None: that is refused.
        budget_bytes: the most that the new arrays may take; None: no limit.
        sequence: this one and no other; None: the newest.
        journal: the current watermark of the journal whose watermark the checkpoint carries; the coordinator's counts.
        beside_journal: a checkpoint that carries a watermark is refused where no current one is given.
        allow_pending: go on over keys that were pending at the cut and are pending still.
    """

    profile: str = "resume"
    strict: bool = False
    allow: Collection[str] = ()
    layout_policy: str | None = None
    budget_bytes: int | None = None
    sequence: int | None = None
    journal: Mapping[str, Any] | None = None
    beside_journal: bool = False
    allow_pending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a restore did.

    Attributes:
        sequence: the checkpoint.
        versions: where the run stands now.
        skipped: newer checkpoints that were passed over, and why.
        effects: the journal's watermark that the checkpoint carries; a restore undoes no effect.
        not_undone: what was committed after the cut and stands, where a current watermark was given.
    """

    sequence: int
    versions: Mapping[str, int]
    skipped: tuple[Skipped, ...]
    effects: Mapping[str, Any] | None = None
    not_undone: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumable:
    """Everything that the next update needs, verified by all contributors; nothing was swapped in."""

    arrays: Mapping[str, Array]
    versions: Mapping[str, int]
    values: Mapping[str, Any]
    kept: Collection[str]
    report: Report

    def swap_in(self, state: State) -> None:
        """Give it to the trainer: all of it, or nothing."""
        state.adopt(arrays=self.arrays, versions=self.versions, values=self.values, keep=self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of a checkpoint: enough to use a model, and not to resume its training."""

    arrays: Mapping[str, Array]
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one contributor read of an offered checkpoint."""

    found: Found
    arrays: Mapping[str, Array]
    boxes: Mapping[str, Box]
    kept: Collection[str]
    not_undone: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Restorer:
    """What one contributor does to restore."""

    run: Run
    group: Group
    contract: Contract
    deadlines: Deadlines
    facts: Facts
    at: At
    _number: int = field(default=0, init=False)

    @property
    def _world(self) -> tuple[str, ...]:
        return tuple(contributor_id(rank) for rank in range(self.group.world))

    def resumable(self, state: State, terms: Terms) -> Resumable | None:
        """Agree on a checkpoint; None when there is none.

        Raises:
            CheckpointError: all contributors get the same one, and nothing was changed.
        """
        agreed = self._agree(state, terms)
        if agreed is None:
            return None
        part, skipped = agreed
        versions = _versions_of(part.found, contributor_id(self.group.rank))
        return Resumable(
            arrays=part.arrays,
            versions=versions,
            values=_values_of(part.found, self.group.rank, self._world),
            kept=part.kept,
            report=_report(part, versions, skipped),
        )

    def weights(self, state: State, terms: Terms) -> Weights | None:
        """Agree on a checkpoint's weights; None when there is none."""
        agreed = self._agree(state, terms)
        if agreed is None:
            return None
        part, skipped = agreed
        versions = _versions_of(part.found, contributor_id(self.group.rank))
        return Weights(arrays=part.arrays, report=_report(part, versions, skipped))

    def _agree(self, state: State, terms: Terms) -> tuple[_Part, tuple[Skipped, ...]] | None:
        before = None if terms.sequence is None else terms.sequence + 1
        passed: list[Skipped] = []
        while True:
            self._number += 1
            offer = self._offer(terms, before, passed)
            if (error := error_of(offer)) is not None:
                raise error
            sequence = offer["sequence"]
            self.at("offered")
            if sequence is None:
                return None
            part, vote = self._verify(state, terms, offer)
            self.at("verified")
            verdict = self._decide(terms, part, vote)
            self.at("agreed")
            if (error := error_of(verdict)) is not None:
                raise error
            skipped = tuple(Skipped(sequence=number, reason=reason) for number, reason in offer["skipped"])
            if verdict["accepted"]:
                assert part is not None  # noqa: S101 - accepted by this one too
                return dataclasses.replace(part, not_undone=verdict["not_undone"]), skipped
            passed[:] = [*skipped, Skipped(sequence=sequence, reason=verdict["reason"])]
            before = sequence

    def _offer(self, terms: Terms, before: int | None, passed: list[Skipped]) -> Body:
        """At the coordinator: the newest that is whole as far as its records say; elsewhere: hear it."""
        offer: Body | None = None
        if self.group.rank == COORDINATOR:
            try:
                if terms.sequence is not None:
                    load(self.run, terms.sequence)  # raises what is wrong with the one that was asked for
                found, newer = latest(
                    self.run, profile=terms.profile, strict=terms.strict or terms.sequence is not None, before=before
                )
                skipped = [*passed, *newer]
                offer = {
                    "sequence": None if found is None else found.sequence,
                    "digest": None if found is None else found.manifest.digest,
                    "skipped": [[each.sequence, each.reason] for each in skipped],
                }
                if found is None and skipped:
                    offer = error_body(_nothing_left(skipped))
                elif found is not None and terms.sequence not in {None, found.sequence}:
                    offer = error_body(
                        Retired(f"Checkpoint {terms.sequence} is none, or was pruned: look for another.")
                    )
            except CheckpointError as error:
                offer = error_body(error)
        seconds = self.deadlines.entry_seconds + self.deadlines.margin_seconds
        return self.group.broadcast(MEET, f"offer.{self._number}", offer, seconds=seconds)

    def _verify(self, state: State, terms: Terms, offer: Body) -> tuple[_Part | None, Body]:
        """Read this contributor's part into new arrays, and say how that went."""
        try:
            found = load(self.run, offer["sequence"])
            if found.manifest.digest != offer["digest"]:
                raise DigestMismatch(f"checkpoint {found.sequence} is not the one that the coordinator offers")
            part = self._read(found, state, terms)
        except CheckpointError as error:
            return None, error_body(error)
        except OSError as error:
            return None, error_body(Damaged(f"checkpoint {offer['sequence']} cannot be read: {error}"))
        return part, {"boxes": {name: [list(bounds) for bounds in box] for name, box in part.boxes.items()}}

    def _read(self, found: Found, state: State, terms: Terms) -> _Part:
        me = contributor_id(self.group.rank)
        if "contract" not in terms.allow:
            check_same_contract(self.contract, found.manifest.contract_digest)
        roles = found.contract.profiles[terms.profile]
        stored = {name: parts[0][1] for name, parts in found.cut.items.items()}
        try:
            state = state.facing({name: (item.dtype, item.global_shape) for name, item in stored.items()})
            items = state.items
            targets = [
                Target(name=name, dtype=name_of(item.array), global_shape=tuple(item.shape), box=item.part)
                for name, item in sorted(items.items())
                if item.role in roles
            ]
        except ManifestInvalid as error:  # of the live state: no checkpoint is damaged by it
            raise differing([str(error)]) from error
        taken = check_fit(
            found, targets, contributor=me, world=self._world, profile=terms.profile, config=self.facts.config,
            lineage=self.facts.lineage, overrides=terms.allow, layout_policy=terms.layout_policy,
            budget_bytes=terms.budget_bytes,
        )  # fmt: skip
        not_undone = _beside_journal(found, terms) if self.group.rank == COORDINATOR else None
        boxes = {name: items[name].part for name in taken}
        wants = [Want(name=name, box=box, contributor=me) for name, box in boxes.items()]
        kept = items.keys() - set(taken)
        arrays = read_items(self.run, found, wants)
        if terms.profile == "resume":
            state.check(arrays, values=_values_of(found, self.group.rank, self._world), keep=kept)
        return _Part(found=found, arrays=arrays, boxes=boxes, kept=kept, not_undone=not_undone)

    def _decide(self, terms: Terms, part: _Part | None, vote: Body) -> Body:
        seconds = self.deadlines.persist_seconds
        name = f"vote.{self._number}"
        verdict: Body | None = None
        if self.group.rank == COORDINATOR:
            try:
                votes = self.group.gather(MEET, name, vote, seconds=seconds, until_error=False)
                verdict = self._verdict(terms, part, votes)
            except CheckpointError as error:
                verdict = error_body(error)
        else:
            self.group.gather(MEET, name, vote, seconds=seconds)
        self.at("voted")
        if verdict is not None and (withdrawn := self._withdrawn()):
            verdict = error_body(missing(withdrawn, "voted and gave up before the verdict"))
        try:
            return self.group.broadcast(
                MEET, f"verdict.{self._number}", verdict, seconds=seconds + self.deadlines.margin_seconds
            )
        except CoordinatorLost:  # where it is only stopped, it would swap in alone
            self.group.publish(MEET, f"withdrawn.{self._number}.{self.group.rank}", {})
            raise

    def _withdrawn(self) -> set[int]:
        """At the coordinator: whose vote counts no more."""
        names = {rank: f"withdrawn.{self._number}.{rank}" for rank in range(self.group.world)}
        return {rank for rank, name in names.items() if self.group.look(MEET, name) is not None}

    def _verdict(self, terms: Terms, part: _Part | None, votes: Mapping[int, Body]) -> Body:
        """At the coordinator: accepted by all, or the next older one, or an error for all."""
        refused = [(rank, error) for rank in sorted(votes) if (error := error_of(votes[rank])) is not None]
        for rank, error in refused:
            if terms.strict or terms.sequence is not None or not isinstance(error, FALLS_BACK):
                raise told_by(rank, error)
        if not refused:
            assert part is not None  # noqa: S101 - the coordinator voted too
            try:
                self._check_taken(part.found, terms, {rank: vote["boxes"] for rank, vote in votes.items()})
            except FALLS_BACK as damage:
                if terms.strict or terms.sequence is not None:
                    raise
                refused = [(COORDINATOR, damage)]
            else:
                return {"accepted": True, "not_undone": part.not_undone}
        rank, error = refused[0]
        return {"accepted": False, "reason": f"{type(error).__name__}: contributor {rank}: {error}"}

    def _check_taken(self, found: Found, terms: Terms, taken: Mapping[int, Mapping[str, Any]]) -> None:
        """Everything that the profile needs has a taker, and what has none is verified here."""
        roles, different, left = found.contract.profiles[terms.profile], [], []
        for name, parts in found.cut.items.items():
            item = parts[0][1]
            takers = [rank for rank in sorted(taken) if name in taken[rank]]
            if item.role not in roles or not takers:
                left.append(name)  # what has no place is refused by whoever fits it; what begins anew has none
            elif item.placement == "sharded":
                boxes = [tuple((low, high) for low, high in taken[rank][name]) for rank in takers]
                try:
                    check_tiling(item.global_shape, boxes, what=f"item {name}")
                except CoverageError as error:
                    different.append(f"{name}: {error}")
        if different:
            raise differing(different)
        if terms.layout_policy is None and self._world != found.manifest.contributors:
            _check_values(found)
        if left:
            verify_items(self.run, found, left)


def _nothing_left(skipped: list[Skipped]) -> Damaged:
    told = "; ".join(f"{each.sequence}: {each.reason}" for each in skipped)
    return Damaged(
        f"No checkpoint is left that could be restored ({told}). Nothing was changed: look at them with "
        "`counterfoil checkpoint verify`, or begin a run of another name."
    )


def _beside_journal(found: Found, terms: Terms) -> Mapping[str, Any] | None:
    """What the journal has committed since the cut, where the checkpoint carries its watermark.

    Raises:
        JournalBehind: the journal is older than the cut, or no current watermark was given.
        JournalForked: it is another one.
        Incompatible: keys that were pending at the cut are pending still.
    """
    if found.manifest.effects is None or (terms.journal is None and not terms.beside_journal):
        return None
    if terms.journal is None:
        raise JournalBehind(
            f"Checkpoint {found.sequence} carries a journal's watermark, and none of this moment was given. Nothing "
            "was restored: give what `counterfoil journal watermark --json` prints."
        )
    kept = read_watermark(found.manifest.effects["watermark"])
    try:
        now = read_watermark(terms.journal)
    except ManifestInvalid as error:  # of what was handed over: no checkpoint is damaged by it
        raise differing([str(error)]) from error
    return compare(kept, now, allow_pending=terms.allow_pending).document()


def _placement(found: Found, name: str) -> str:
    return found.contract.placement_of(name.partition("/")[0], name)


def _check_values(found: Found) -> None:
    """In another layout, no value may be a contributor's own."""
    own = sorted({
        name
        for each in found.contributions.values()
        for name in each.values
        if _placement(found, name) == "per_contributor"
    })  # fmt: skip
    if own:
        raise LayoutChanged(
            f"{', '.join(own)} are each contributor's own, of {', '.join(found.manifest.contributors)}. Nothing was "
            "changed: name a policy for them, or start as many contributors as the checkpoint has.",
            differences=tuple(own),
        )


def _values_of(found: Found, rank: int, world: tuple[str, ...]) -> dict[str, Any]:
    """The values that a contributor had, or has in another layout."""
    mine = {
        name: value
        for name, value in found.cut.values.items()
        if _placement(found, name) == "replicated" or rank == COORDINATOR
    }
    if world == found.manifest.contributors:
        own = found.contributions[contributor_id(rank)].values
        mine |= {name: value for name, value in own.items() if _placement(found, name) == "per_contributor"}
    return mine


def _versions_of(found: Found, contributor: str) -> dict[str, int]:
    own = {name: each[contributor] for name, each in found.manifest.per_contributor.items() if contributor in each}
    return {**found.manifest.versions, **own}


def _report(part: _Part, versions: Mapping[str, int], skipped: tuple[Skipped, ...]) -> Report:
    return Report(
        sequence=part.found.sequence,
        versions=versions,
        skipped=skipped,
        effects=part.found.manifest.effects,
        not_undone=part.not_undone,
    )
