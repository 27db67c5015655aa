"""Every mutant there is: docs/guarantees.md names each of them, and tests/test_guarantees.py compares the two."""

from typing import Final

from tests.mutants import (
    answers,
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
)
