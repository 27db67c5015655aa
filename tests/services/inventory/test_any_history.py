"""Any history of calls: the inventory answers as a small model does, and what it has stored verifies."""

import itertools
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from services.database import open_engine, writing
from services.inventory.housekeeping import Housekeeping
from services.inventory.stock import StockKeeper
from services.inventory.tables import RESERVATIONS
from services.inventory.verification.run import verify
from tests.services.inventory.conftest import NOW, Caller, Service, connect, running
from tests.services.inventory.model import Model, Receipt

EXAMPLES, STEPS = 6, 25
EXAMPLES_LONG = 60  # `make faults`
SKUS = ("FILTER-A", "FILTER-B", "HOSE-C")
some_lines = st.dictionaries(st.sampled_from(SKUS), st.integers(1, 6), min_size=1, max_size=3)
any_of = st.integers(0, 1_000)


class Histories(RuleBasedStateMachine):
    """One tenant's, over HTTP."""

    service: ClassVar[Service]
    tenants: ClassVar[Iterator[int]]

    def __init__(self) -> None:
        super().__init__()
        number = next(type(self).tenants)
        self.http = connect(self.service.url, f"token-{number}")
        self.caller = Caller(self.http, f"tenant-{number}", not_after="2027-01-01T00:00:00Z")
        self.model = Model()
        self.sent: dict[str, tuple[str, Any, dict[str, str]]] = {}
        self.ends: dict[str, Any] = {}

    def teardown(self) -> None:
        """Ends that were moved are put back: only a clock may do what these tests did."""
        with writing(self.service.engine) as connection:
            for name, ends_at in self.ends.items():
                of = (RESERVATIONS.c.tenant == self.caller.tenant, RESERVATIONS.c.reservation_id == name)
                connection.execute(RESERVATIONS.update().where(*of).values(expires_at=ends_at))
        self.http.close()

    def _key(self) -> str:
        return f"any-history-{len(self.sent):06d}-g1"

    def _send(self, path: str, body: Any, key: str, former: tuple[str, ...] = ()) -> httpx.Response:
        headers = {"Effect-Supersedes": ", ".join(former)} if former else {}
        self.sent[key] = (path, body, headers)
        return self.caller.post(path, body, key, headers)

    def _holds(self, answer: httpx.Response, receipt: Receipt) -> None:
        """The answer is what the model says, and is kept to be compared with later ones."""
        document = answer.json()
        if receipt.problem:
            assert document["type"] == f"/problems/{receipt.problem}"
            document = document["receipt"]
            receipt.text = json.dumps(document, separators=(",", ":"))
        else:
            assert answer.status_code in {200, 201}
            receipt.text = answer.text
        assert (document["key"], document["outcome"]) == (receipt.key, receipt.outcome)
        assert document["sequence"] == list(self.model.receipts).index(receipt.key) + 1
        assert document["reservation_id"] == receipt.reservation

    def _one(self, number: int) -> str | None:
        names = list(self.model.reservations)
        return names[number % len(names)] if names else None

    @rule(sku=st.sampled_from(SKUS[:2]), quantity=st.integers(1, 12))
    def deliver(self, sku: str, quantity: int) -> None:
        """Units come in."""
        key = self._key()
        answer = self._send("/v1/deliveries", {"sku": sku, "quantity": quantity}, key)
        self._holds(answer, self.model.deliver(key, sku, quantity))

    @rule(lines=some_lines, held=st.booleans(), former=st.lists(any_of, max_size=3))
    def reserve(self, lines: dict[str, int], held: bool, former: list[int]) -> None:
        """Now and then as a redo of keys that are known, or of keys that never came."""
        key = self._key()
        known = [name for name in self.model.receipts if "@" not in name]
        names = {
            known[number % len(known)] if known and number % 3 else f"never-came-{number:06d}" for number in former
        }
        body: dict[str, Any] = {"lines": [{"sku": sku, "quantity": quantity} for sku, quantity in lines.items()]}
        if held:
            body["hold_seconds"] = 3600
        answer = self._send("/v1/reservations", body, key, tuple(sorted(names)))
        self._holds(answer, self.model.reserve(key, dict(sorted(lines.items())), sorted(names), held=held))

    @precondition(lambda self: self.model.reservations)
    @rule(number=any_of, confirm=st.booleans())
    def move(self, number: int, confirm: bool) -> None:
        """Confirm or release, in whatever state it is."""
        name = self._one(number) or ""
        key = self._key()
        answer = self._send(f"/v1/reservations/{name}/{'confirm' if confirm else 'release'}", {}, key)
        self._holds(answer, self.model.confirm(key, name) if confirm else self.model.release(key, name))

    @precondition(lambda self: any(each.state == "held" for each in self.model.reservations.values()))
    @rule(number=any_of, by_call=st.booleans())
    def end_a_hold(self, number: int, by_call: bool) -> None:
        """Noticed by the service itself, or by whoever comes."""
        held = [name for name, each in self.model.reservations.items() if each.state == "held"]
        name = held[number % len(held)]
        of = (RESERVATIONS.c.tenant == self.caller.tenant, RESERVATIONS.c.reservation_id == name)
        with self.service.engine.connect() as connection:
            ends_at = connection.execute(sa.select(RESERVATIONS.c.expires_at).where(*of)).scalar_one()
        self.ends.setdefault(name, ends_at)
        self.service.end_hold(self.caller, {"reservation_id": name})
        if by_call:
            key = self._key()
            answer = self._send(f"/v1/reservations/{name}/confirm", {}, key)
            end = self.model.expire(name)
            self._holds(answer, self.model.confirm(key, name))
        else:
            self.service.housekeeping()
            end = self.model.expire(name)
        end.text = self.caller.receipt(end.key).text

    @rule(number=any_of)
    def void(self, number: int) -> None:
        """A key that is known, or one that never came."""
        known = [name for name in self.model.receipts if "@" not in name]
        key = known[number % len(known)] if known and number % 2 else f"never-came-{number:06d}"
        answer = self.caller.void(key)
        receipt = self.model.receipts.get(key)
        if receipt is None:
            self._holds(answer, self.model.add(Receipt(key, "voided", "")))
            self.model.receipts[key].problem = "key-voided"
        elif receipt.gone:
            assert answer.json()["type"] == "/problems/key-expired"
        elif receipt.text:
            assert answer.text == receipt.text

    @precondition(lambda self: self.sent)
    @rule(number=any_of, other=st.booleans())
    def come_again(self, number: int, other: bool) -> None:
        """With the same request it is answered word for word; with another one it is refused."""
        key = list(self.sent)[number % len(self.sent)]
        path, body, headers = self.sent[key]
        receipt = self.model.receipts[key]
        if other:
            path, body = "/v1/deliveries", {"sku": "OTHER", "quantity": 1_000}
        answer = self.caller.post(path, body, key, headers)
        document = answer.json()
        if receipt.gone:
            assert document["type"] == "/problems/key-expired"
        elif other:
            assert document["type"] == "/problems/idempotency-key-reused"
        elif receipt.problem:
            assert (document["type"], document["receipt"]) == (f"/problems/{receipt.problem}", json.loads(receipt.text))
        else:
            assert answer.text == receipt.text
            assert answer.headers["Idempotency-Replayed"] == "true"

    @rule()
    def retain_nothing(self) -> None:
        """Everything that is there loses its body."""
        self.service.clock.now += timedelta(seconds=1)
        keeper = StockKeeper(self.service.engine, self.service.clock)
        Housekeeping(self.service.engine, keeper, self.service.clock, timedelta(0)).drop_expired()
        for receipt in self.model.receipts.values():
            receipt.gone = True

    @invariant()
    def what_is_read_is_what_the_model_says(self) -> None:
        """Stock, reservations, the feed, look-ups and digests."""
        for sku in self.model.received:
            assert self.caller.stock(sku) == self.model.balances(sku)
        for name, reservation in self.model.reservations.items():
            read = self.http.get(f"/v1/reservations/{name}").json()
            assert (read["state"], {line["sku"]: line["quantity"] for line in read["lines"]}) == (
                reservation.state,
                reservation.lines,
            )
        kept = [(number, each) for number, each in enumerate(self.model.receipts.values(), 1) if not each.gone]
        feed = self.http.get("/v1/receipts", params={"limit": 1000}).json()
        assert [(each["sequence"], each["key"]) for each in feed["receipts"]] == [(n, each.key) for n, each in kept]
        assert feed["watermark"] == len(self.model.receipts)
        digests = self.http.get("/v1/receipts/digests").json()
        assert (digests["count"], digests["digest"]) == self.model.digest()
        if self.model.receipts:
            keys = [*list(self.model.receipts)[-400:], "never-seen-by-anybody"]
            found = self.http.post("/v1/receipts/lookup", json={"keys": keys}).json()["receipts"]
            assert found.pop("never-seen-by-anybody") is None
            for key, document in found.items():
                gone = self.model.receipts[key].gone
                assert document.get("type") == ("/problems/key-expired" if gone else None)
                assert gone or document["outcome"] == self.model.receipts[key].outcome


def test_any_history_is_answered_as_the_model_says_and_verifies(
    database_url: str, request: pytest.FixtureRequest
) -> None:
    """Reserve, hold, confirm, release, deliver, void, redo, ends of holds, retention, and the same again."""
    examples = EXAMPLES_LONG if request.config.getoption("long") else EXAMPLES
    tokens = {f"token-{number}": f"tenant-{number}" for number in range(1, 10 * examples)}
    with running(database_url, tokens) as service:
        Histories.service, Histories.tenants = service, itertools.count(1)
        service.clock.now = NOW
        run_state_machine_as_test(
            Histories,
            settings=settings(
                max_examples=examples,
                stateful_step_count=STEPS,
                deadline=None,
                # Over HTTP a smaller example would take minutes to find, and this one is small.
                phases=[phase for phase in Phase if phase is not Phase.shrink],
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
        found = verify(service.engine)
        assert found.violation is None, found.violation.sentence
        assert found.checked.receipts > examples
    engine = open_engine(database_url)
    assert verify(engine).violation is None
    engine.dispose()
