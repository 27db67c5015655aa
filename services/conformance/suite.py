"""The whole run: every check once, capability by capability, and what came of it."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from services.conformance.bench import Bench
from services.conformance.capabilities import Capability, Check
from services.conformance.checks import (
    closing,
    deadlines,
    documents,
    generations,
    holds,
    reading,
    repetition,
    stock,
    strictness,
)
from services.conformance.exchanges import Exchange
from services.conformance.expectations import Broken, expect_answer

MODULES = (stock, repetition, closing, deadlines, generations, holds, reading, strictness, documents)
_ORDER = list(Capability)
# Sorted by capability; within one in the order of their module.
CHECKS: tuple[Check, ...] = tuple(
    sorted((check for module in MODULES for check in module.CHECKS), key=lambda check: _ORDER.index(check.capability))
)
DEFAULT_ROUNDS = 24


class State(StrEnum):
    """What is known of a check, or of a capability."""

    HELD = "held"
    LACKING = "lacking"
    NOT_CHECKED = "not checked"  # it is told with a capability that lacks


class Refused(Exception):
    """The provider does not let this token do what the run needs."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.said)
        self.exchange = exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one check."""

    check: Check
    state: State
    message: str = ""
    exchanges: tuple[Exchange, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """The finding as JSON members."""
        return {
            "name": self.check.name,
            "sentence": self.check.sentence,
            "state": self.state.value,
            "message": self.message,
            "exchanges": [exchange.as_document() for exchange in self.exchanges],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What no check can require: it is the operator's choice, and is reported as it was seen."""

    signature: str
    retention: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run found."""

    run: str
    requests: int
    findings: tuple[Finding, ...]
    seen: Seen

    @property
    def lacking(self) -> tuple[Capability, ...]:
        """What the provider lacks."""
        return tuple(capability for capability in Capability if self.state(capability) is State.LACKING)

    def of(self, capability: Capability) -> tuple[Finding, ...]:
        """A capability's findings."""
        return tuple(finding for finding in self.findings if finding.check.capability is capability)

    def state(self, capability: Capability) -> State:
        """Lacking if one of its checks found so; not checked if none could be told."""
        return _state(self.of(capability))

    def as_document(self) -> dict[str, Any]:
        """The report as JSON members."""
        return {
            "run": self.run,
            "requests": self.requests,
            "conforms": not self.lacking,
            "lacking": [capability.value for capability in self.lacking],
            "seen": {"signature": self.seen.signature, "retention": self.seen.retention},
            "capabilities": [
                {
                    "capability": capability.value,
                    "state": self.state(capability).value,
                    "checks": [finding.as_document() for finding in self.of(capability)],
                }
                for capability in Capability
            ],
        }


async def examine(
    http: httpx.AsyncClient, *, rounds: int, progress: Callable[[str], None], checks: Iterable[Check] = CHECKS
) -> Report:
    """Check a provider.

    Args:
        http: a client with its URL and a token that may write, from `bench.connect`.
        rounds: how often each race is run.
        progress: told of each capability as it is begun.
        checks: which, of `CHECKS` and in their order.

    Raises:
        Refused: the token is not accepted, or may not write.
        Unreachable: nothing answers.
    """
    bench = Bench(http, rounds=rounds)
    await _admitted(bench)
    findings: list[Finding] = []
    for capability, its in itertools.groupby(checks, key=lambda check: check.capability):
        progress(capability.value)
        before = tuple(findings)
        # Side by side: most of the time is waiting, for commits and for holds to end.
        findings += await asyncio.gather(*(_find(bench.for_one_check(), check, before) for check in its))
    return Report(run=bench.run, requests=len(bench.everything), findings=tuple(findings), seen=await _see(bench))


async def _admitted(bench: Bench) -> None:
    answer = await bench.deliver(bench.sku(), 1)
    if answer.status in {401, 403}:
        raise Refused(answer)


async def _find(bench: Bench, check: Check, before: Iterable[Finding]) -> Finding:
    lacking = sorted(
        {one.check.capability for one in before if one.state is State.LACKING and one.check.capability in check.needs}
    )
    if lacking:
        return Finding(check=check, state=State.NOT_CHECKED, message=f"needs {', '.join(lacking)}")
    try:
        await check.run(bench)
    except Broken as broken:
        return Finding(check=check, state=State.LACKING, message=broken.message, exchanges=broken.exchanges)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # A member that should be there is not, or is something else.
        message = f"an answer has not the contract's members ({type(error).__name__}: {error})"
        return Finding(check=check, state=State.LACKING, message=message, exchanges=tuple(bench.heard[-1:]))
    return Finding(check=check, state=State.HELD)


def _state(findings: Iterable[Finding]) -> State:
    states = {finding.state for finding in findings}
    if State.LACKING in states:
        return State.LACKING
    return State.HELD if State.HELD in states else State.NOT_CHECKED


async def _see(bench: Bench) -> Seen:
    signatures = {exchange.receipt.get("signature") for exchange in bench.everything if exchange.receipt}
    signed = {str(signature).partition(":")[0] for signature in signatures if signature is not None}
    signature = ", ".join(sorted(signed)) or "none"
    if signed and None in signatures:
        signature += ", not on every receipt"
    try:
        first = expect_answer(await bench.get("/v1/receipts?limit=1"), 200).document["receipts"][0]
        begins = int(first["sequence"])
    except (Broken, KeyError, IndexError, TypeError, ValueError):
        return Seen(signature=signature, retention="not seen: the feed shows no receipt")
    if begins == 1:
        return Seen(signature=signature, retention="every receipt since the first still has its body")
    retention = (
        f"the feed begins at sequence {begins}, of {first.get('created_at')}: older receipts have lost their bodies"
    )
    return Seen(signature=signature, retention=retention)
