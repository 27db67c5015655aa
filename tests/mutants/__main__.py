"""Each guard of the protocol removed in turn, in a copy of this tree: the tests must notice every one."""

import dataclasses
import json
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from tests.mutants.mutant import Mutant
from tests.mutants.register import MUTANTS
from tests.mutants.running import Judgement, MutantError, Verdict, check_imports, control, copy_tree, try_mutant


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _told(verdict: Verdict) -> str:
    says = verdict.says if verdict.judgement is Judgement.BROKEN else verdict.says[:160]
    return f"{verdict.judgement:<8} {verdict.seconds:5.1f} s  {verdict.rule:<4} {verdict.name}\n{'':20}{says}"


def run_all(mutants: Sequence[Mutant], *, at_once: int) -> list[Verdict]:
    """Try every mutant, so many at once, each in a copy of its own; the verdicts in the register's order.

    Raises:
        MutantError: a mutant does not fit the code, or the tests are red without one.
    """
    with tempfile.TemporaryDirectory(prefix="counterfoil-mutants-") as folder:
        first, *others = [Path(folder) / f"copy-{number}" for number in range(min(at_once, len(mutants)))]
        copy_tree(first)
        check_imports(first)
        started = time.monotonic()
        count = control(first, mutants)
        _say(f"control  {time.monotonic() - started:5.1f} s  {count} tests are green without a mutant")
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for copy in others:
            shutil.copytree(first, copy, ignore=shutil.ignore_patterns("mutants-*"))
            check_imports(copy)
            free.put(copy)
        free.put(first)

        def one(mutant: Mutant) -> Verdict:
            copy = free.get()
            try:
                verdict = try_mutant(mutant, copy)
            finally:
                free.put(copy)
            _say(_told(verdict))
            return verdict

        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(one, mutants))


@click.command(help=__doc__)
@click.option("--only", multiple=True, metavar="NAME", help="This mutant and no other; may be repeated.")
@click.option("--at-once", default=2, show_default=True, type=click.IntRange(1, 16), help="How many run side by side.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr.")
def main(only: tuple[str, ...], at_once: int, *, as_json: bool) -> None:
    """Exit 0 when every mutant died, 1 when one did not or nothing could be shown, 2 for a name that is none."""
    unknown = sorted(set(only) - {mutant.name for mutant in MUTANTS})
    if unknown:
        raise click.BadParameter(f"no mutant is called {', '.join(unknown)}", param_hint="--only")
    chosen = [mutant for mutant in MUTANTS if not only or mutant.name in only]
    try:
        verdicts = run_all(chosen, at_once=at_once)
    except MutantError as error:
        _say(str(error))
        if as_json:
            click.echo(json.dumps({"error": str(error)}))
        sys.exit(1)
    dead = sum(verdict.judgement is Judgement.DEAD for verdict in verdicts)
    if as_json:
        told = [dataclasses.asdict(verdict) for verdict in verdicts]
        click.echo(json.dumps({"mutants": len(verdicts), "dead": dead, "verdicts": told}, indent=2))
    else:
        for verdict in verdicts:
            if verdict.judgement is not Judgement.DEAD:
                click.echo(_told(verdict))
        click.echo(f"{len(verdicts)} mutants, {dead} dead")
    sys.exit(0 if dead == len(verdicts) else 1)


if __name__ == "__main__":
    main()
