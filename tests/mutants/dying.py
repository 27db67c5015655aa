"""What only a death between two transactions shows: two of them where one must be."""

from typing import Final

from tests.mutants.mutant import Mutant

_OPERATOR: Final = "services/journal/operator.py"
_COMMANDS: Final = "tests/faults/seams/test_commands.py"

MUTANTS: Final = (
    Mutant(
        name="an-adoption-in-two-transactions",
        rule="G11",
        file=_OPERATOR,
        before="""            return self._observe(tx, intent.key, answer, None)

        return self._write(work)
""",
        after="""            return None

        self._write(work)
        return self.observe(intent.key, answer)
""",
        tests=(f"{_COMMANDS}::test_who_adopts_may_die_anywhere_and_the_same_command_finishes_it",),
        paired="a death between the row and its receipt: the same command says done over a pending row",
    ),
    Mutant(
        name="a-redo-decided-in-one-transaction-and-journaled-in-another",
        rule="G9",
        file=_OPERATOR,
        before="""            if not repeated:
                tx.append(row.key, "resolution", command.body(generation=row.generation + 1, redo_key=key))
            by_another = "" if mine or _is_of(command, decision) else decided(decision)
            return Redone(decision=decision, key=key, repeated=repeated, by_another=by_another)

        return self._write(work)
""",
        after="""            return Redone(decision=decision, key=key, repeated=repeated)

        redone = self._write(work)
        if not redone.repeated:
            body = command.body(generation=redone.decision.generation, redo_key=redone.key)
            self._write(lambda tx: tx.append(command.key, "resolution", body))
        return redone
""",
        tests=(f"{_COMMANDS}::test_who_redoes_may_die_anywhere_and_the_same_command_finishes_it",),
        paired="a death after the decision: the same command finds it taken, and who took it is never journaled",
    ),
)
