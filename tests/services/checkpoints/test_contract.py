"""A contract is refused where it is written, not where it is used."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.contract import Contract, check_same_contract
from services.checkpoints.errors import Incompatible, InvariantViolation, ManifestInvalid
from tests.services.checkpoints.bench import DOCUMENT, contract


def test_a_contract_has_one_digest_however_it_is_written(tmp_path: Path) -> None:
    """SHA-256 of the canonical spelling."""
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(DOCUMENT, indent=4))
    loaded = Contract.load(path)
    assert loaded == contract()
    assert loaded.digest == hashlib.sha256(loaded.document()).hexdigest()
    assert Contract.parse(loaded.document()) == loaded
    assert contract(boundary="another").digest != loaded.digest


def test_a_placement_may_differ_by_the_items_name() -> None:
    """The first pattern that matches counts."""
    roles = {**DOCUMENT["roles"], "buffer": {"placement": "replicated", "patterns": {"bn.*": "per_contributor"}}}
    this = contract(roles=roles)
    assert this.placement_of("buffer", "bn.mean") == "per_contributor"
    assert this.placement_of("buffer", "rope") == "replicated"
    with pytest.raises(InvariantViolation, match="grad"):
        this.placement_of("grad", "g")


def test_a_profile_names_what_is_missing() -> None:
    """C44: masters that were dropped are no detail."""
    this = contract(profiles={"resume": ["param", "moment_m", "cursor", "master"], "weights": ["param"]})
    assert this.missing_for("resume", {"param", "cursor"}, {"moment_m"}) == ("master",)
    with pytest.raises(ManifestInvalid):
        this.missing_for("export", set(), set())


def test_a_tolerance_is_two_numbers() -> None:
    """Or the word exact."""
    assert contract(reproducibility={"rtol": 1e-6, "atol": 0}).reproducibility == {"rtol": 1e-6, "atol": 0.0}
    assert contract().reproducibility == "exact"


def changed(role: str, **members: Any) -> dict[str, Any]:
    """The roles with one of them changed."""
    return {**DOCUMENT["roles"], role: {**DOCUMENT["roles"].get(role, {}), **members}}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "counterfoil-checkpoint-1"},
        {"name": "../x"},
        {"versions": {**DOCUMENT["versions"], "updates": ["shared"]}},
        {"roles": {**DOCUMENT["roles"], "param": {"placement": "sharded", "finite": ["refuse"]}}},
        {"constants": {"start": 0, "batch": 2**63}},
        {"reproducibility": {"rtol": float("inf"), "atol": 0}},
        {"boundary": ""},
        {"versions": {"step": "shared"}},
        {"versions": {**DOCUMENT["versions"], "updates": "both"}},
        {"versions": []},
        {"constants": {"batch": 2.5, "start": 0}},
        {"constants": {"batch": 2, "start": 0, "updates": 1}},
        {"constants": {"batch": 2, "start": 0, "contributors": 1}},
        {"relations": ["updates == unknown"]},
        {"relations": ["sum(updates) == cursor"]},
        {"relations": ["fetched >= cursor"]},
        {"relations": ["import os"]},
        {"relations": "updates == 1"},
        {"profiles": {"resume": ["param"], "weights": ["param"]}},
        {"profiles": {"resume": ["param", "moment_m", "cursor"]}},
        {"profiles": {"resume": ["param", "moment_m", "cursor", "grad"], "weights": ["param"]}},
        {"reproducibility": "nearly"},
        {"reproducibility": {"rtol": -1.0, "atol": 0}},
        {"roles": changed("weights", placement="sharded")},
        {"roles": changed("param", placement="somewhere")},
        {"roles": changed("param", required=1)},
        {"roles": changed("param", finite="maybe")},
        {"roles": changed("param", versions=["forwards"])},
        {"roles": changed("cursor", agrees={"": "forwards"})},
        {"roles": changed("param", absent_if="true")},
        {"roles": changed("param", patterns={"x": "y"})},
        {"roles": changed("param", more=1)},
        {"more": 1},
    ],
)
def test_what_a_contract_cannot_say_is_refused(change: dict[str, Any]) -> None:
    """Before a run of weeks begins under it."""
    with pytest.raises(ManifestInvalid):
        contract(**change)


def test_a_relation_may_count_the_contributors() -> None:
    """They are a constant of every cut."""
    assert contract(relations=["contributors == 1"]).relations[0].text == "contributors == 1"


def test_another_contract_is_said_with_both_digests() -> None:
    """A checkpoint is restored by the contract it was made under."""
    check_same_contract(contract(), contract().digest)
    with pytest.raises(Incompatible, match=contract().digest[:16]):
        check_same_contract(contract(), "0" * 64)
