"""Strict requests: what two parsers could read differently is refused, and nothing is executed."""

import json

from services.conformance.bench import Bench, to_json, tomorrow
from services.conformance.capabilities import Capability, check
from services.conformance.exchanges import Exchange
from services.conformance.expectations import expect, expect_answer

_STRICTNESS = Capability.STRICTNESS
_MOST_BYTES = 65_536
_MOST_QUANTITY = 1_000_000_000


def _bodies(sku: str) -> dict[str, bytes]:
    """Bodies of a delivery that are no strict JSON, or not what a delivery is, and what is wrong with each."""
    good = json.dumps({"sku": sku, "quantity": 1})

    def with_quantity(text: str) -> bytes:
        return good.replace(": 1}", f": {text}}}").encode()

    return {
        "nothing": b"",
        "white space alone": b" \n",
        "cut off": good[:-1].encode(),
        "two documents": (good + good).encode(),
        "not UTF-8": b'{"sku":"\xff","quantity":1}',
        "a byte order mark": b"\xef\xbb\xbf" + good.encode(),
        "UTF-16": good.encode("utf-16"),
        "a comment": b"// a delivery\n" + good.encode(),
        "a member twice": good.replace("{", '{"quantity": 1, ').encode(),
        "NaN": with_quantity("NaN"),
        "Infinity": with_quantity("Infinity"),
        "a number that overflows": with_quantity("1e400"),
        "21 digits": with_quantity("1" * 21),
        "5,000 digits": with_quantity("1" * 5000),
        "an unpaired surrogate": b'{"sku":"\\ud800","quantity":1}',
        "60,000 brackets": b"[" * 60_000,
        "12,000 nested objects": b'{"a":' * 12_000,
        "33 levels": with_quantity("[" * 32 + "]" * 32),
        "no object": b"[]",
        "an unknown member": (good[:-1] + ',"urgent":true}').encode(),
        "a missing member": b'{"quantity":1}',
        "text for a number": with_quantity('"1"'),
        "2.0 for a whole number": with_quantity("2.0"),
        "1e0 for a whole number": with_quantity("1e0"),
        "true for a number": with_quantity("true"),
        "null for a number": with_quantity("null"),
        "zero": with_quantity("0"),
        "a negative number": with_quantity("-1"),
        "too many": with_quantity(str(_MOST_QUANTITY + 1)),
        "a SKU with a space": good.replace(sku, f"{sku} ").encode(),
        "a SKU with NUL": good.replace(sku, f"{sku}\\u0000").encode(),
        "an empty SKU": good.replace(sku, "").encode(),
        "a SKU of 129 characters": good.replace(sku, "S" * 129).encode(),
    }


@check(_STRICTNESS, "A body is refused with 400 `validation-failed`, not repaired")
async def _what_could_be_read_in_two_ways_is_refused(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    for wrong, body in _bodies(sku).items():
        answer = await bench.post("/v1/deliveries", body, key)
        expect(
            answer.said == "400 validation-failed",
            f"a body with {wrong} should be refused; it is {answer.said}",
            answer,
        )
    expect(await bench.balances(sku) == (1, 1, 0, 0), "a refused body moved something", bench.heard[-1])
    # None of them used the key up.
    expect_answer(await bench.deliver(sku, _MOST_QUANTITY, key), 201)


@check(_STRICTNESS, '1 to 100 of `{"sku", "quantity"}`; a SKU may be there twice: its quantities are summed')
async def _a_reserve_has_1_to_100_lines(bench: Bench) -> None:
    sku = await bench.delivered(200)
    line = {"sku": sku, "quantity": 1}
    for lines in ([], [line] * 101, line, None, [line, {**line, "more": 1}], [line, 1]):
        expect_answer(await bench.post("/v1/reservations", {"lines": lines}), 400, "validation-failed")
    expect_answer(await bench.post("/v1/reservations", {"lines": [line] * 100}), 201)
    expect(await bench.balances(sku) == (200, 100, 0, 100), "100 lines of one SKU are summed", bench.heard[-1])


@check(_STRICTNESS, "text of 1 to 512 bytes of UTF-8 without NUL, or null")
async def _a_reference_is_bounded_in_bytes(bench: Bench) -> None:
    sku = await bench.delivered(10)
    wrong: tuple[object, ...] = ("", "a" * 513, "ä" * 257, "a\x00b", 1, [])
    for text in wrong:
        expect_answer(await bench.reserve(sku, 1, reference=text), 400, "validation-failed")
    made = await bench.reserved(sku, 1, reference="ä" * 256)
    release = f"/v1/reservations/{made['reservation_id']}/release"
    for body in (b'{"reason":""}', b'{"reason":"%s"}' % (b"a" * 513), b'{"why":"x"}', b"", b"null"):
        expect_answer(await bench.post(release, body), 400, "validation-failed")
    expect_answer(await bench.post(release, {"reason": "b" * 512}), 200)


@check(_STRICTNESS, "A body may have 65,536 bytes, that of a lookup 131,072. A longer one is 413 `payload-too-large`.")
async def _a_body_is_bounded(bench: Bench) -> None:
    sku = await bench.delivered(1)
    body = to_json({"sku": sku, "quantity": 1})
    expect_answer(await bench.post("/v1/deliveries", body.ljust(_MOST_BYTES)), 201)
    for size in (_MOST_BYTES + 1, 900_000):
        expect_answer(await bench.post("/v1/deliveries", body.ljust(size)), 413, "payload-too-large")
    expect(await bench.balances(sku) == (2, 2, 0, 0), "a body that is too long was executed", bench.heard[-1])


@check(_STRICTNESS, "empty, two headers (equal ones too), `key, key`, half a quotation, 15 or 129 characters")
async def _what_is_not_one_key_is_refused(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    body = to_json({"sku": sku, "quantity": 1})
    expect_answer(await _with_keys(bench, body), 400, "idempotency-key-missing")
    wrong = (
        "",
        "a" * 15,
        "a" * 129,
        f'"{key}',
        f'{key}"',
        f'""{key}""',
        f"{key}, {key}",
        f"{key}/",
        "é" * 20,
        f"{key}@expiry",
    )
    for value in wrong:
        expect_answer(await _with_keys(bench, body, value), 400, "idempotency-key-invalid")
    expect_answer(await _with_keys(bench, body, key, key), 400, "idempotency-key-invalid")
    expect(await bench.balances(sku) == (1, 1, 0, 0), "a call without a usable key was executed", bench.heard[-1])
    longest = f"{key}.~:_".ljust(128, "-")
    expect_answer(await _with_keys(bench, body, f'"{longest}"'), 201)


async def _with_keys(bench: Bench, body: bytes, *keys: str) -> Exchange:
    headers = [("Effect-Not-After", tomorrow()), *(("Idempotency-Key", key) for key in keys)]
    return await bench.call("POST", "/v1/deliveries", headers, body)


CHECKS = (
    _what_could_be_read_in_two_ways_is_refused,
    _a_reserve_has_1_to_100_lines,
    _a_reference_is_bounded_in_bytes,
    _a_body_is_bounded,
    _what_is_not_one_key_is_refused,
)
