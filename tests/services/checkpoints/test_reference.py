"""The reference learner's contract fits the learner."""

from services.checkpoints.learner import ROLES, Learner, LearnerConfig
from services.checkpoints.reference import contract_of
from services.checkpoints.versions import NAMES


def test_every_role_and_version_of_the_learner_is_in_the_contract() -> None:
    """And nothing is required that it does not have."""
    contract = contract_of(LearnerConfig())
    learner = Learner(LearnerConfig())
    assert set(contract.versions) == set(NAMES) == set(learner.versions.timeline())
    assert {role.name for role in contract.roles.values() if role.required} == set(ROLES.values()) | set(learner.values)
    assert set(contract.profiles["resume"]) == set(contract.roles)


def test_another_batch_is_another_contract() -> None:
    """The relations are about numbers: cursor == start + attempts * batch."""
    assert contract_of(LearnerConfig(batch=2)).digest != contract_of(LearnerConfig(batch=4)).digest
    assert contract_of(LearnerConfig(seed=1)).digest == contract_of(LearnerConfig(seed=2)).digest


def test_every_relation_holds_after_every_attempt() -> None:
    """Also after one that was skipped."""
    config = LearnerConfig(scaler=True)
    contract, learner = contract_of(config), Learner(config)
    for _ in range(12):
        learner.attempt(lambda own: [own])
        names = {**learner.versions.timeline(), **contract.constants}
        assert all(relation.value(names) for relation in contract.relations)
        assert learner.values["cursor"]["samples"] == learner.versions["cursor"]
        assert learner.values["scheduler"]["updates"] == learner.versions["scheduler"]
    assert learner.versions["skips"] > 0
