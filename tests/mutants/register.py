"""Every mutant there is: docs/guarantees.md names each of them, and tests/test_guarantees.py compares the two."""

from typing import Final

from tests.mutants import (
    answers,
    checkpoints_exchange,
    checkpoints_learner,
    checkpoints_others,
    checkpoints_picture,
    checkpoints_records,
    checkpoints_session,
    checkpoints_store,
    checkpoints_torch,
    commanding,
    deadlines,
    dying,
    identity,
    operating,
    providing,
    sending,
    settling,
    sweeping,
)
from tests.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *sending.MUTANTS,
    *identity.MUTANTS,
    *deadlines.MUTANTS,
    *settling.MUTANTS,
    *answers.MUTANTS,
    *providing.MUTANTS,
    *sweeping.MUTANTS,
    *commanding.MUTANTS,
    *operating.MUTANTS,
    *dying.MUTANTS,
    *checkpoints_store.MUTANTS,
    *checkpoints_session.MUTANTS,
    *checkpoints_learner.MUTANTS,
    *checkpoints_others.MUTANTS,
    *checkpoints_picture.MUTANTS,
    *checkpoints_records.MUTANTS,
    *checkpoints_exchange.MUTANTS,
    *checkpoints_torch.MUTANTS,
)
