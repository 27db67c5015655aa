"""What a mutant is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One guard, removed by replacing one text in one file.

    Attributes:
        name: what is gone, in a few words; unique.
        rule: the rule of docs/guarantees.md that the guard belongs to.
        file: where it is, from the root.
        before: occurs exactly once in the file.
        after: what stands there instead; a program that starts, only without the guard.
        tests: the tests that must go red, each of them, as pytest names them without parameters.
        paired: the fault or the provider's lack in which the guard alone prevents harm, or what the tests look at
            instead of the harm; in a healthy world other guards would hide that it is gone.
    """

    name: str
    rule: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    paired: str
