"""The whole run: nothing is found at the real inventory, and exactly what is taken away from it."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from services.conformance.bench import Unreachable, connect
from services.conformance.capabilities import Capability, Check
from services.conformance.suite import CHECKS, MODULES, Refused, Report, State, examine
from services.database import open_engine
from services.inventory.verification.run import verify
from tests.ports import nobody_listening
from tests.services.conformance import lacking
from tests.services.conformance.conftest import TOKEN, listening

ROUNDS = 12
FEW_ROUNDS = 2
CONTRACT = " ".join((Path(__file__).parents[3] / "docs" / "effects-api.md").read_text().split())


def around(capability: Capability) -> tuple[Check, ...]:
    """Its checks, those that are told with it, all that these are told with; and those of whatever was heard."""
    told = {capability} | {check.capability for check in CHECKS if capability in check.needs}
    told |= {need for check in CHECKS if check.capability in told for need in check.needs}
    return tuple(check for check in CHECKS if check.capability in {*told, Capability.RECEIPTS, Capability.PROBLEMS})


async def run(url: str, rounds: int, token: str = TOKEN, checks: Iterable[Check] = CHECKS) -> Report:
    """A run against what answers there."""
    async with connect(url, token) as http:
        return await examine(http, rounds=rounds, progress=lambda _name: None, checks=checks)


async def run_through(app: ASGIApp, rounds: int = FEW_ROUNDS, checks: Iterable[Check] = CHECKS) -> Report:
    """A run against an application."""
    with listening(app) as url:
        return await run(url, rounds, checks=checks)


async def test_the_inventory_keeps_the_contract(inventory_url: str, inventory_database: str) -> None:
    """On either database, with every race run a dozen times; and what is recorded of it adds up."""
    report = await run(inventory_url, ROUNDS)
    assert [finding for finding in report.findings if finding.state is not State.HELD] == []
    assert report.lacking == ()
    assert report.seen.signature == "none"
    assert report.seen.retention.startswith("every receipt")
    engine = open_engine(inventory_database)
    assert verify(engine, (), lambda _count: None).violation is None
    engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("wrapper", "missing"),
    [
        (lacking.NoLedgerKeys, Capability.STOCK),
        (lacking.NoRejections, Capability.REJECTIONS),
        (lacking.VoidThatClosesNothing, Capability.VOID),
        (lacking.NoReplay, Capability.REPLAY),
        (lacking.NoNotAfter, Capability.NOT_AFTER),
        (lacking.NoSupersedes, Capability.SUPERSEDES),
        (lacking.NoHolds, Capability.HOLDS),
        (lacking.NoFeed, Capability.FEED),
        (lacking.NoDigests, Capability.DIGESTS),
        (lacking.NoStrictness, Capability.STRICTNESS),
        (lacking.NoSchemaVersion, Capability.RECEIPTS),
        (lacking.NoCacheControl, Capability.PROBLEMS),
    ],
)
async def test_what_is_taken_away_is_named_and_nothing_else(
    inventory_url: str, wrapper: type[lacking.Whole], missing: Capability
) -> None:
    """One capability gone, one named, with the exchange that showed it; by its own checks and its neighbours'."""
    only_lacks(await run_through(wrapper(inventory_url), checks=around(missing)), missing)


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("wrapper", "missing"), [(lacking.NoLookup, Capability.LOOKUP), (lacking.NoVoid, Capability.VOID)]
)
async def test_what_every_story_may_be_told_with_is_missed_by_no_other_check(
    inventory_url: str, wrapper: type[lacking.Whole], missing: Capability
) -> None:
    """The whole suite: a check that needs what is gone says that it does."""
    only_lacks(await run_through(wrapper(inventory_url)), missing)


def only_lacks(report: Report, missing: Capability) -> None:
    """It lacks this, and each finding shows an exchange."""
    assert report.lacking == (missing,), [(one.check.name, one.message) for one in report.findings if one.message]
    shown = [one for one in report.findings if one.state is State.LACKING]
    assert all(one.exchanges for one in shown)


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("wrapper", "missing", "race"),
    [
        (lacking.DedupeWithoutLock, Capability.DEDUPE, "many requests at once are one effect"),
        (lacking.VoidWithoutLock, Capability.VOID, "a call and a void at once agree"),
        (
            lacking.SupersedesWithoutLock,
            Capability.SUPERSEDES,
            "a redo and its delayed former generation at once are one effect",
        ),
    ],
)
async def test_what_is_right_one_after_the_other_and_wrong_at_once_is_found_by_its_race(
    inventory_url: str, wrapper: type[lacking.Whole], missing: Capability, race: str
) -> None:
    """Whoever looks first and acts then is in order as long as nobody else is there."""
    report = await run_through(wrapper(inventory_url), ROUNDS, around(missing))
    found = {one.check.name for one in report.findings if one.state is State.LACKING}
    assert report.lacking == (missing,)
    assert race in found


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("wrapper", "name"),
    [
        (lacking.NoRequestId, "a request keeps its own id"),
        (lacking.PlusIsPlus, "a question is decoded as a form is"),
        (lacking.NoAllow, "what is not there is said in a problem document"),
        (lacking.LedgerThatStartsOver, "the ledger goes on after a version"),
        (lacking.NamelessRefusals, "a release refused for its former generation names its reservation"),
        (lacking.OneExpiryForAll, "holds that end together have a receipt each"),
        (lacking.ReusedIsReplayed, "another request under a used key is refused"),
    ],
)
async def test_what_is_a_little_wrong_is_found_by_its_check(
    inventory_url: str, wrapper: type[lacking.Whole], name: str
) -> None:
    """Each at a provider that gets one thing wrong."""
    (finding,) = (
        await run_through(wrapper(inventory_url), checks=[one for one in CHECKS if one.name == name])
    ).findings
    assert finding.state is State.LACKING
    assert "has not the contract's members" not in finding.message


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_check_that_cannot_be_told_is_not_a_finding(inventory_url: str) -> None:
    """Without dedupe nothing can be said of what a repetition is answered with, and nothing else is lacking."""
    report = await run_through(lacking.NoDedupe(inventory_url))
    only_lacks(report, Capability.DEDUPE)
    assert report.state(Capability.REPLAY) is not State.LACKING
    untold = [one for one in report.findings if one.state is State.NOT_CHECKED]
    assert {one.check.capability for one in untold} >= {Capability.REJECTIONS, Capability.DIGESTS}
    assert {one.message for one in untold} == {"needs dedupe"}


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_only_keys_and_skus_of_the_run_are_written(inventory_url: str) -> None:
    """Seen by what stands between, and is not noticed: no finding above is the wrapper's own."""
    seen: list[tuple[str, bytes]] = []

    class Watching(lacking.Whole):
        async def answer(self, asked: lacking.Asked) -> lacking.Answered:
            key = asked.header(b"idempotency-key") or b""
            answer = await self.forward(asked)
            if answer.header(b"receipt-outcome") != b"none":
                seen.append((key.decode(), answer.body))
            return answer

    report = await run_through(Watching(inventory_url))
    assert report.lacking == ()
    named = [name for _, body in seen for name in re.findall(r'"(?:sku|key)": ?"([^"]+)"', body.decode())]
    assert len(named) > len(seen) > 100
    assert all(name.startswith(report.run) for name in named)
    assert all(key.strip('"').startswith(report.run) for key, _ in seen if key)


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_token_that_is_not_known_ends_the_run_at_once(inventory_url: str) -> None:
    """It says nothing about the provider."""
    with pytest.raises(Refused, match="401 unauthorized"):
        await run(inventory_url, FEW_ROUNDS, "another")


async def test_nobody_there_is_not_a_lack() -> None:
    """Nothing was connected to, so nothing is known."""
    with nobody_listening() as port, pytest.raises(Unreachable):
        await run(f"http://127.0.0.1:{port}", FEW_ROUNDS)


async def test_what_is_no_provider_at_all_lacks_everything() -> None:
    """Pages that say 200 to anything: no check falls over, and none is passed."""
    page = Starlette(
        routes=[Route("/{path:path}", lambda _request: HTMLResponse("<p>Hello"), methods=["GET", "POST", "PUT"])]
    )
    report = await run_through(page)
    assert {one.check.name for one in report.findings if one.state is State.HELD} <= {
        "no two keys share a receipt or a sequence",
        "every refusal that was heard is a problem document",
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_holds_a_sentence_of_the_contract(check: Check) -> None:
    """Word for word: what is not written down is not required."""
    assert " ".join(check.sentence.split()) in CONTRACT


def test_every_capability_is_checked_after_what_it_needs() -> None:
    """A check that is told with a capability comes after those that find it lacking."""
    assert {check.capability for check in CHECKS} == set(Capability)
    order = list(Capability)
    for check in CHECKS:
        assert all(order.index(need) < order.index(check.capability) for need in check.needs)


def test_no_check_is_left_out() -> None:
    """Every function that is marked as a check is in its module's list, and every name is given once."""
    for module in MODULES:
        tree = ast.parse(Path(str(module.__file__)).read_text())
        marked = [node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef) and node.decorator_list]
        assert [check.name for check in module.CHECKS] == [name.strip("_").replace("_", " ") for name in marked]
    assert len({check.name for check in CHECKS}) == len(CHECKS)
