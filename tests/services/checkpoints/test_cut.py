"""A cut is checked as one whole, and refused with both numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.checkpoints.boxes import whole
from services.checkpoints.contract import Contract
from services.checkpoints.contribution import Contribution, RecordedItem, nbytes_of
from services.checkpoints.cut import check_cut, check_world, roles_of
from services.checkpoints.errors import (
    CheckpointError,
    CoverageError,
    CutVersionMismatch,
    DuplicateContributor,
    InvariantViolation,
    ManifestInvalid,
    NonFinite,
    ReplicaDivergence,
)
from services.checkpoints.records import digest_of
from tests.services.checkpoints.bench import DOCUMENT, contract, versions


def held(name: str, role: str, placement: str, data: Any, **changes: Any) -> RecordedItem:
    """One item as a record states it."""
    array = np.asarray(data, np.float64)
    known: dict[str, Any] = {
        "name": name, "role": role, "placement": placement, "dtype": "float64", "global_shape": array.shape,
        "box": whole(array.shape), "offset": 0, "nbytes": array.nbytes, "digest": digest_of(array.tobytes()),
        "finite": True, **changes,
    }  # fmt: skip
    known["nbytes"] = nbytes_of(known["box"], known["dtype"])
    return RecordedItem(**known)


def given(
    contributor: str, items: Sequence[RecordedItem], at: Mapping[str, int], values: Mapping[str, Any] | None = None
) -> Contribution:
    """One contributor's record."""
    return Contribution(
        save_id="0" * 32, contributor=contributor, versions=at, items=tuple(items),
        values=({"cursor": at["cursor"]} if contributor == "0" else {}) if values is None else values,
        direct=True, digest="0" * 64, record_bytes=100,
    )  # fmt: skip


def rank(number: int, at: Mapping[str, int], *more: RecordedItem, of: int = 2) -> Contribution:
    """A contributor with its row of the weights and of the moment."""
    items = [
        held(name, role, "sharded", np.zeros((of, 2)), box=((number, number + 1), (0, 2)))
        for name, role in (("w", "param"), ("m.w", "moment_m"))
    ]
    return given(str(number), [*items, *more], at)


def checked(*contributions: Contribution, rules: Contract | None = None, kind: str = "full") -> Any:
    """The cut of these."""
    return check_cut(rules or contract(), {each.contributor: each for each in contributions}, kind=kind)


def test_a_cut_says_what_all_contributors_say() -> None:
    """And keeps apart what each says for itself."""
    cut = checked(rank(0, versions(3)), rank(1, {**versions(3), "fetched": 9}))
    assert cut.versions == {name: value for name, value in versions(3).items() if name != "fetched"}
    assert cut.per_contributor == {"fetched": {"0": 6, "1": 9}}
    assert cut.values == {"cursor": 6}
    assert [holder for holder, _ in cut.items["w"]] == ["0", "1"]
    assert (cut.absent, cut.missing) == ((), ())


def test_contributors_at_different_updates_are_no_cut() -> None:
    """C04: every number is named, none is chosen."""
    with pytest.raises(CutVersionMismatch, match=r"rank 2: updates 100 != 101") as caught:
        checked(rank(0, versions(101), of=3), rank(1, versions(101), of=3), rank(2, versions(100), of=3))
    assert "rank 2: cursor 200 != 202" in str(caught.value)


def test_positions_are_compared_and_not_residues() -> None:
    """D06: updates 2 and 10 agree modulo 8."""
    with pytest.raises(CutVersionMismatch, match=r"rank 1: updates 10 != 2"):
        checked(rank(0, versions(2)), rank(1, versions(10)))


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ({"cursor": 4}, r"cursor 4 != 6"),  # C14: captured before the cursor advanced
        ({"attempts": 5, "skips": 1}, r"4 != attempts 5"),
        ({"fetched": 1}, r"sum\(fetched\) 1 < cursor 6"),
    ],
)
def test_a_relation_that_is_false_refuses_the_cut(at: dict[str, int], why: str) -> None:
    """C14: the batch would be trained twice."""
    with pytest.raises(InvariantViolation, match=why):
        checked(rank(0, {**versions(3), **at}, of=1))


def test_a_scheduler_that_advanced_with_a_skipped_step_refuses_the_cut() -> None:
    """C26: attempt 5 was skipped and the scheduler counted it."""
    with pytest.raises(InvariantViolation, match=r"scheduler 5 != updates 4"):
        checked(rank(0, {**versions(4, skips=1), "scheduler": 5}, of=1))


def test_moments_may_be_absent_only_as_the_contract_says() -> None:
    """C29: 20 attempts, all skipped: no moments yet, and the cut says so."""
    only = held("w", "param", "sharded", np.zeros((1, 2)))
    assert checked(given("0", [only], versions(0, skips=20))).absent == ("moment_m",)
    with pytest.raises(InvariantViolation, match="moment_m"):
        checked(given("0", [only], versions(1)))


def test_a_cut_without_its_cursor_is_no_full_one() -> None:
    """C19: as weights only, on purpose, it may be kept."""
    with pytest.raises(InvariantViolation, match="cursor"):
        checked(given("0", rank(0, versions(3), of=1).items, versions(3), {}))
    cut = checked(given("0", rank(0, versions(3), of=1).items, versions(3), {}), kind="weights_only")
    assert cut.missing == ("cursor",)
    with pytest.raises(InvariantViolation, match="param"):
        checked(given("0", [], versions(3)), kind="weights_only")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"placement": "replicated"}, InvariantViolation),
        ({"role": "master"}, InvariantViolation),
        ({"dtype": "float32"}, InvariantViolation),
        ({"global_shape": (3, 2)}, InvariantViolation),
        ({"box": ((0, 1), (0, 2))}, CoverageError),
        ({"box": ((1, 1), (0, 2))}, CoverageError),
        ({"finite": False}, NonFinite),
        ({"name": "other"}, CoverageError),
    ],
)
def test_one_shard_that_does_not_fit_the_others_refuses_the_cut(
    changes: dict[str, Any], error: type[CheckpointError]
) -> None:
    """C50: its name, its rank and what is wrong."""
    shard = replace(held("m.w", "moment_m", "sharded", np.zeros((2, 2)), box=((1, 2), (0, 2))), **changes)
    other = held("w", "param", "sharded", np.zeros((2, 2)), box=((1, 2), (0, 2)))
    with pytest.raises(error, match=r"m\.w|other"):
        checked(rank(0, versions(3)), given("1", [other, shard], versions(3)))


def test_replicas_are_equal_or_refused() -> None:
    """C10, C08: what differs is not chosen from; and the lowest alone writes."""
    mine, same = held("b", "buffer", "replicated", [0, 1]), held("b", "buffer", "replicated", [0, 1], offset=None)
    assert [holder for holder, _ in checked(rank(0, versions(3), mine), rank(1, versions(3), same)).items["b"]] == ["0"]
    with pytest.raises(ReplicaDivergence, match="rank 1"):
        checked(
            rank(0, versions(3), mine),
            rank(1, versions(3), held("b", "buffer", "replicated", [2, 3], offset=None)),
        )
    with pytest.raises(ReplicaDivergence, match="do not agree whether"):
        checked(rank(0, versions(3), mine), rank(1, versions(3), replace(same, finite=False)))
    with pytest.raises(ReplicaDivergence, match="rank 1 does not hold"):
        checked(rank(0, versions(3), mine), rank(1, versions(3)))
    with pytest.raises(InvariantViolation, match="alone writes"):
        checked(rank(0, versions(3), mine), rank(1, versions(3), mine))


def test_each_contributors_own_is_kept_for_each() -> None:
    """C10, C11: same name, different bytes, both there."""
    cut = checked(
        rank(0, versions(3), held("g", "rng", "per_contributor", [0, 1])),
        rank(1, versions(3), held("g", "rng", "per_contributor", [2, 3])),
    )
    assert len(cut.items["g"]) == 2
    roles = {**DOCUMENT["roles"], "rng": {"placement": "per_contributor", "required": True}}
    rules = contract(roles=roles, profiles={**DOCUMENT["profiles"], "resume": ["param", "moment_m", "cursor", "rng"]})
    with pytest.raises(InvariantViolation, match="rank 1 has no rng"):
        checked(rank(0, versions(3), held("g", "rng", "per_contributor", [0, 1])), rank(1, versions(3)), rules=rules)


def test_a_cursor_of_each_contributor_may_differ_where_the_contract_says_so() -> None:
    """C11: 223 and 220."""
    own = {"required": True, "placement": "per_contributor", "agrees": {"": "cursor"}}
    rules = contract(
        versions={**DOCUMENT["versions"], "cursor": "per_contributor"},
        relations=["scheduler == updates"],
        roles={**DOCUMENT["roles"], "cursor": own},
    )
    parts = [
        given(str(number), rank(number, versions(3)).items, {**versions(3), "cursor": at}, {"cursor": at})
        for number, at in enumerate((223, 220))
    ]
    assert checked(*parts, rules=rules).per_contributor["cursor"] == {"0": 223, "1": 220}


def test_a_value_agrees_with_the_cut() -> None:
    """A cursor beside the cut's, and a scheduler state that counts otherwise."""
    items = rank(0, versions(3), of=1).items
    with pytest.raises(InvariantViolation, match=r"cursor 4 != cursor 6"):
        checked(given("0", items, versions(3), {"cursor": 4}))
    checked(given("0", items, versions(3), {"cursor": 6, "scheduler": {"last": 3}}))
    for value in ({"last": 4}, {}, 3, {"last": True}):
        with pytest.raises(InvariantViolation, match="scheduler"):
            checked(given("0", items, versions(3), {"cursor": 6, "scheduler": value}))


def test_what_is_global_is_the_first_contributors_alone() -> None:
    """Items and values."""
    with pytest.raises(InvariantViolation, match="rank 1"):
        checked(rank(0, versions(3)), given("1", rank(1, versions(3)).items, versions(3), {"cursor": 6}))
    with pytest.raises(InvariantViolation, match="global"):
        checked(rank(0, versions(3)), rank(1, versions(3), held("s", "scheduler", "global", [1])))


def test_work_in_flight_is_drained_or_represented() -> None:
    """A window of gradients that nobody carries would be lost."""
    with pytest.raises(InvariantViolation, match=r"microbatch 1 != 0.*grad"):
        checked(rank(0, {**versions(3), "microbatch": 1}, of=1))
    with pytest.raises(InvariantViolation, match="in_flight"):
        checked(rank(0, {**versions(3), "in_flight": 2}, of=1))
    rules = contract(
        roles={**DOCUMENT["roles"], "grad": {"required": True, "placement": "sharded", "absent_if": "microbatch == 0"}},
        profiles={**DOCUMENT["profiles"], "resume": ["param", "moment_m", "cursor", "grad"]},
    )
    at = {**versions(3), "microbatch": 1}
    checked(rank(0, at, held("g", "grad", "sharded", np.zeros(2)), of=1), rules=rules)
    with pytest.raises(InvariantViolation, match="missing: grad"):
        checked(rank(0, at, of=1), rules=rules)


@pytest.mark.parametrize("lost", ["updates", "cursor", "fetched"])
def test_a_version_that_is_not_stated_is_no_zero(lost: str) -> None:
    """A role carries it, a relation uses it, every rank states it."""
    at = {name: value for name, value in versions(3).items() if name != lost}
    parts = [given("0", rank(0, versions(3), of=1).items, at, {"cursor": 6})]
    if lost == "fetched":
        parts = [rank(0, versions(3)), given("1", rank(1, versions(3)).items, at)]
    with pytest.raises(InvariantViolation, match=lost):
        checked(*parts)


def test_roles_versions_and_kinds_are_those_of_the_contract() -> None:
    """Nothing is ignored because nobody knows it."""
    with pytest.raises(InvariantViolation, match="forwards"):
        checked(rank(0, {**versions(3), "forwards": 3}, of=1))
    with pytest.raises(InvariantViolation, match="grad"):
        checked(rank(0, versions(3), held("g", "grad", "sharded", [1]), of=1))
    with pytest.raises(ManifestInvalid):
        checked(rank(0, versions(3), of=1), kind="some")
    with pytest.raises(ManifestInvalid):
        checked()


def test_non_finite_is_taken_where_the_contract_takes_it() -> None:
    """A running maximum may begin at minus infinity."""
    checked(rank(0, versions(3), held("b", "buffer", "replicated", [0], finite=False), of=1))


def test_a_contributor_stands_once() -> None:
    """And a contribution has the roles of its items and of its values."""
    assert check_world(["0", "1"]) == ("0", "1")
    with pytest.raises(DuplicateContributor, match="0 stands twice"):
        check_world(["0", "1", "0"])
    assert roles_of(rank(0, versions(3))) == {"param", "moment_m", "cursor"}


def test_many_contributors_are_told_apart_without_comparing_all_pairs() -> None:
    """A manifest of a million names is no way to keep a reader busy, and a thousand real ones hold replicas."""
    many = [str(number) for number in range(200_000)]
    assert check_world(many) == tuple(many)
    with pytest.raises(DuplicateContributor, match="17 stands twice"):
        check_world([*many, "17"])


def test_a_role_that_is_a_value_carries_its_versions_too() -> None:
    """The coordinator gives the cursor as a number, and says at which update."""
    roles = {**DOCUMENT["roles"], "cursor": {**DOCUMENT["roles"]["cursor"], "versions": ["draws"]}}
    rules = contract(roles=roles, versions={**DOCUMENT["versions"], "draws": "shared"})
    checked(rank(0, versions(3, draws=6), of=1), rules=rules)
    with pytest.raises(InvariantViolation, match="holds cursor and does not state draws"):
        checked(rank(0, versions(3), of=1), rules=rules)
