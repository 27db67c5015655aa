"""What every answer is: receipts, problem documents, headers, and which check answers first."""

from services.conformance.bench import Bench, to_json, tomorrow
from services.conformance.capabilities import Capability, check
from services.conformance.expectations import (
    Broken,
    expect,
    expect_answer,
    header_faults,
    problem_faults,
    receipt_faults,
)

_RECEIPTS, _PROBLEMS = Capability.RECEIPTS, Capability.PROBLEMS


@check(_RECEIPTS, "A receipt is one flat JSON object with all of these members, always.")
async def _every_receipt_that_was_heard_is_whole(bench: Bench) -> None:
    sku, reference = bench.sku(), bench.name()
    answers = [
        await bench.deliver(sku, 10),
        await bench.reserve(sku, 2, reference=reference),
        await bench.reserve(sku, 99),
    ]
    answers.append(await bench.move(answers[1].receipt["reservation_id"], "release"))
    kinds = [answer.receipt.get("kind") for answer in answers]
    expected = ["inventory.deliver", "inventory.reserve", "inventory.reserve", "inventory.release"]
    expect(kinds == expected, "the kind says which call it was", *answers)
    request = {"lines": [{"sku": sku, "quantity": 2}], "reference": reference}
    expect(answers[1].receipt["request"] == request, f"request should be {request}", answers[1])
    for exchange in bench.everything:
        if exchange.receipt:
            faults = receipt_faults(exchange.receipt)
            expect(not faults, f"{exchange.receipt.get('receipt_id')}: {'; '.join(faults)}", exchange)


@check(_RECEIPTS, "unique within the tenant, opaque")
async def _no_two_keys_share_a_receipt_or_a_sequence(bench: Bench) -> None:
    seen: dict[object, str] = {}
    for exchange in bench.everything:
        receipt = exchange.receipt
        for number in filter(None, (receipt.get("receipt_id"), receipt.get("sequence"))):
            expect(seen.setdefault(number, receipt["key"]) == receipt["key"], f"{number} stands for two keys", exchange)


@check(_PROBLEMS, "the token decides the tenant")
async def _a_request_without_its_token_does_nothing(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    headers = [("Idempotency-Key", key), ("Effect-Not-After", tomorrow()), ("Authorization", f"Bearer {bench.run}")]
    body = to_json({"lines": [{"sku": sku, "quantity": 1}]})
    refused = expect_answer(await bench.call("POST", "/v1/reservations", headers, body), 401, "unauthorized")
    expect(refused.headers.get("www-authenticate") == "Bearer", "WWW-Authenticate is Bearer", refused)
    for scheme in (f"Basic {bench.run}", bench.run, ""):
        answer = await bench.call("GET", f"/v1/stock/{sku}", [("Authorization", scheme)])
        expect_answer(answer, 401, "unauthorized")
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a request without a token moved something", refused)
    expect_answer(await bench.reserve(sku, 1, key), 201)


@check(_PROBLEMS, "There is never a redirect: a path with a slash too many is 404.")
async def _what_is_not_there_is_said_in_a_problem_document(bench: Bench) -> None:
    for method, path in (
        ("GET", "/v1/nothing"),
        ("POST", "/v1/reservations/"),
        ("GET", "/v1/receipts/"),
        ("GET", "/nothing"),
    ):
        expect_answer(await bench.call(method, path), 404, "not-found")
    for method, path in (
        ("DELETE", "/v1/reservations"),
        ("PUT", "/v1/deliveries"),
        ("POST", f"/v1/stock/{bench.sku()}"),
    ):
        refused = expect_answer(await bench.call(method, path), 405, "method-not-allowed")
        expect("allow" in refused.headers, "a 405 says in Allow what the path takes", refused)


@check(_PROBLEMS, "HEAD is GET without the body")
async def _a_head_is_answered_as_a_get_is(bench: Bench) -> None:
    path = f"/v1/stock/{await bench.delivered(1)}"
    head = await bench.call("HEAD", path)
    expect((head.status, head.body) == (200, b""), f"HEAD {path} should be 200 without a body", head)


@check(_PROBLEMS, "the request's own, if it has exactly one, of `[A-Za-z0-9._~-]{1,128}`")
async def _a_request_keeps_its_own_id(bench: Bench) -> None:
    own = f"{bench.run}.~_".ljust(128, "x")
    seen = await bench.call("GET", "/livez", [("X-Request-Id", own)])
    expect(seen.headers.get("x-request-id") == own, f"X-Request-Id should be {own}", seen)
    for ids in ([own + "x"], [f"{bench.run} 1"], [f"{bench.run}-1", f"{bench.run}-2"]):
        seen = await bench.call("GET", "/livez", [("X-Request-Id", each) for each in ids])
        expect(seen.headers.get("x-request-id") not in [*ids, ", ".join(ids)], "what is no id is replaced", seen)


@check(_PROBLEMS, "The first that applies answers; nothing behind it is looked at.")
async def _the_first_check_that_applies_answers(bench: Bench) -> None:
    sku = await bench.delivered(10)
    used = bench.key()
    await bench.reserved(sku, 1, used)
    key = ("Idempotency-Key", used)
    body, bad = to_json({"lines": [{"sku": sku, "quantity": 2}]}), b"{"
    nobody = ("Authorization", f"Bearer {bench.run}")
    for expected, headers, sent in (
        ((401, "unauthorized"), [nobody], bad.ljust(70_000)),
        ((413, "payload-too-large"), [], bad.ljust(70_000)),
        ((400, "idempotency-key-missing"), [], bad),
        ((400, "idempotency-key-invalid"), [("Idempotency-Key", "short")], bad),
        ((400, "validation-failed"), [key], bad),
        ((400, "validation-failed"), [key], body),  # no deadline: before the key is looked up
    ):
        expect_answer(await bench.call("POST", "/v1/reservations", headers, sent), *expected)


@check(_PROBLEMS, "Every answer from 400 on is an RFC 9457 problem document")
async def _every_refusal_that_was_heard_is_a_problem_document(bench: Bench) -> None:
    for exchange in bench.everything:
        faults = problem_faults(exchange) if exchange.status >= 400 else []  # noqa: PLR2004
        expect(not faults, "; ".join(faults), exchange)
        errors = exchange.document.get("errors", []) if exchange.problem == "validation-failed" else []
        whole = all(set(error) == {"at", "message"} for error in errors) and len(errors) <= 20  # noqa: PLR2004
        expect(whole, "errors is a list of at most 20 {at, message}", exchange)


@check(_PROBLEMS, "an id of this one response")
async def _every_answer_that_was_heard_has_its_headers(bench: Bench) -> None:
    ids: set[str] = set()
    for exchange in bench.everything:
        faults = header_faults(exchange)
        if faults:
            raise Broken("; ".join(faults), [exchange])
        expect(exchange.headers["x-request-id"] not in ids, "two answers have one X-Request-Id", exchange)
        ids.add(exchange.headers["x-request-id"])


@check(_PROBLEMS, "the process answers")
async def _health_is_said_without_a_token(bench: Bench) -> None:
    nobody = [("Authorization", "")]
    for path, said in (("/livez", {"status": "live"}), ("/readyz", {"status": "ready"})):
        seen = expect_answer(await bench.call("GET", path, nobody), 200)
        expect(seen.document == said, f"{path} says {said}", seen)


CHECKS = (
    _every_receipt_that_was_heard_is_whole,
    _no_two_keys_share_a_receipt_or_a_sequence,
    _a_request_without_its_token_does_nothing,
    _what_is_not_there_is_said_in_a_problem_document,
    _a_head_is_answered_as_a_get_is,
    _a_request_keeps_its_own_id,
    _the_first_check_that_applies_answers,
    _every_refusal_that_was_heard_is_a_problem_document,
    _every_answer_that_was_heard_has_its_headers,
    _health_is_said_without_a_token,
)
