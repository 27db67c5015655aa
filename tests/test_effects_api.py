"""docs/effects-api.md: whoever implements it must get what we get."""

import hashlib
import hmac
import json
import re
import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import rfc8785

from services.conformance.expectations import PROBLEM_TYPES, digest, digest_item, fingerprint, receipt_faults
from services.database import migrate
from services.effects import keys
from services.effects.keys import derive_key
from services.inventory import digests
from services.inventory.problems import STATUS
from tests.services.inventory.conftest import NOW, Caller, connect, running

SIGNING_KEY = b"development-only-development-only"
DOCUMENT = (Path(__file__).parents[1] / "docs" / "effects-api.md").read_text()
KEY_ROWS = re.findall(r"^\| `(\S+)` \| `(\S+)` \| `(\S+)` \| `(\d+)` \| `(cf1-\S+)` \|$", DOCUMENT, re.MULTILINE)
FINGERPRINTS = re.findall(r'^\| `(\["cf-fp1",.*\])` \| `([0-9a-f]{64})` \|$', DOCUMENT, re.MULTILINE)
ITEMS = re.findall(r'^\| `(\["cf-rd1",.*\])` \| `([0-9a-f]{4})` \| `([0-9a-f]{64})` \|$', DOCUMENT, re.MULTILINE)
EXAMPLES: dict[str, Any] = {
    name: json.loads(text)
    for name, text in re.findall(r"^```json (\S+)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
}


PROBLEMS = {
    name: (int(status), stored == "yes", frozenset(re.findall("`([a-z_]+)`", members)))
    for name, status, stored, members in re.findall(
        r"^\| `([a-z-]+)` \| (\d{3}) \| (yes|no) \|([^|]*)\|", DOCUMENT, re.MULTILINE
    )
}


def sha256(data: bytes) -> str:
    """Its digest in hex."""
    return hashlib.sha256(data).hexdigest()


def test_the_page_has_its_vectors() -> None:
    """A table that is written otherwise than it is read would be compared with nothing."""
    assert (len(KEY_ROWS), len(FINGERPRINTS), len(ITEMS), len(EXAMPLES)) == (3, 7, 3, 9)


@pytest.mark.parametrize("row", KEY_ROWS, ids=lambda row: row[-1])
def test_the_keys_of_the_page_are_derived_as_it_says(row: tuple[str, ...]) -> None:
    """By the words of the page, and by the engine."""
    origin, scope, name, generation, key = row
    identity = {"name": name, "origin": origin, "scope": scope}
    digest = hashlib.sha256(rfc8785.dumps(identity)).digest()[:20]
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    number = int.from_bytes(digest, "big")
    text = "".join(alphabet[number >> shift & 31] for shift in range(155, -1, -5))
    assert key == f"cf1-{text}-g{generation}" == derive_key(origin, scope, name, int(generation))


@pytest.mark.parametrize(("canonical", "expected"), FINGERPRINTS)
def test_the_fingerprints_of_the_page_are_of_what_stands_beside_them(canonical: str, expected: str) -> None:
    """Each text is canonical, and is what is digested; by the engine and by the conformance run too."""
    assert rfc8785.dumps(json.loads(canonical)).decode() == canonical
    assert sha256(canonical.encode()) == expected
    _, kind, path, request = json.loads(canonical)
    assert fingerprint(kind, path, request) == keys.fingerprint(kind, path, request) == expected


def test_the_digests_of_the_page_are_sums_of_its_items() -> None:
    """Each item of what stands beside it, each range of its key, and the sum modulo 2^256."""
    for canonical, prefix, item in ITEMS:
        parts = json.loads(canonical)
        assert rfc8785.dumps(parts).decode() == canonical
        assert sha256(canonical.encode()) == item
        assert sha256(parts[1].encode()).startswith(prefix)
        assert digests.place(parts[1]) == prefix
        assert digests.item(*parts[1:]) == digest_item(*parts[1:]) == int(item, 16)
    total = sum(int(item, 16) for _, _, item in ITEMS)
    assert total >= 2**256, "the vector must show the wrap"
    expected = f"{total % 2**256:064x}"
    items = [int(item, 16) for _, _, item in ITEMS]
    assert digest(items) == digests.to_hex(digests.total(items)) == expected
    assert f"`{expected}`" in DOCUMENT


def test_the_signature_of_the_page_is_of_its_example() -> None:
    """HMAC over the receipt without its signature."""
    receipt = {name: value for name, value in EXAMPLES["reserve"].items() if name != "signature"}
    signature = hmac.new(SIGNING_KEY, rfc8785.dumps(receipt), hashlib.sha256).hexdigest()
    assert f"hmac-sha256:{signature}\n" in DOCUMENT


def test_the_problem_types_of_the_page_are_those_of_the_code() -> None:
    """Name and status of each; a stored one carries its receipt; and the conformance run expects what the page says."""
    assert {name: status for name, (status, _, _) in PROBLEMS.items()} == {
        problem.value: status for problem, status in STATUS.items()
    }
    assert {name: (status, members) for name, (status, _, members) in PROBLEMS.items()} == PROBLEM_TYPES
    assert all(stored == ("receipt" in members) for _, stored, members in PROBLEMS.values())


def tell(caller: Caller, at: Callable[[int], None], keep_house: Callable[[], None]) -> dict[str, Any]:
    """The story of the page's examples, told to a service: what it answered, by the example's name."""

    def key(name: str) -> str:
        return derive_key("demo", "INC-2041", name, 1)

    def reserve(name: str, quantity: int, **members: Any) -> Any:
        request = {"lines": [{"sku": "FILTER-A", "quantity": quantity}], **members}
        return caller.post("/v1/reservations", request, key(name)).json()

    reference = keys.reference("INC-2041", "reserve-filter", 1)
    told: dict[str, Any] = {}
    at(1)
    told["delivery"] = caller.deliver(10, key=key("restock")).json()
    at(2)
    told["reserve"] = reserve("reserve-filter", 2, reference=reference)
    at(3)
    told["hold"] = reserve("hold-filter", 3, hold_seconds=900)
    at(4)
    confirm = f"/v1/reservations/{told['hold']['reservation_id']}/confirm"
    told["confirm"] = caller.post(confirm, {}, key("hold-filter.g1.confirm")).json()
    at(5)
    release = f"/v1/reservations/{told['reserve']['reservation_id']}/release"
    reason = {"reason": "the incident was cancelled"}
    told["release"] = caller.post(release, reason, key("reserve-filter.g1.release")).json()
    at(6)
    told["rejection"] = reserve("reserve-too-many", 99)
    at(7)
    told["tombstone"] = caller.void(key("reserve-spare")).json()
    told["key-voided"] = reserve("reserve-spare", 1)
    at(8)
    reserve("hold-lapsed", 1, hold_seconds=60)
    at(70)
    keep_house()
    told["expiry"] = caller.receipt(f"{key('hold-lapsed')}@expiry").json()
    return told


def test_the_examples_of_the_page_are_what_the_service_answers(tmp_path: Path) -> None:
    """Each whole document, its numbers and times too; and each receipt is one as the page describes it."""
    database_url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", database_url)
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:

        def at(seconds: int) -> None:
            service.clock.now = NOW + timedelta(seconds=seconds)

        told = tell(Caller(http), at, service.housekeeping)
    assert told == EXAMPLES
    assert [receipt_faults(example.get("receipt", example)) for example in EXAMPLES.values()] == [[]] * len(EXAMPLES)


def test_the_page_s_call_can_be_sent_as_it_stands(tmp_path: Path) -> None:
    """Once the SKU is there: a receipt for the page's own key, and the same bytes again."""
    (command,) = re.findall(r"^```sh\n(curl .*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    _, _, url, *options = shlex.split(command.replace("\\\n", ""))
    given = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in given if option == "-H")
    (body,) = [value for option, value in given if option == "-d"]
    database_url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", database_url)
    token = headers["Authorization"].removeprefix("Bearer ")
    with running(database_url, {token: "acme"}) as service, connect(service.url, token) as http:
        Caller(http).deliver(10)
        first, again = (http.post(httpx.URL(url).path, headers=headers, content=body) for _ in range(2))
    assert (first.status_code, first.json()["key"]) == (201, KEY_ROWS[0][-1])
    assert (again.status_code, again.content) == (201, first.content)
