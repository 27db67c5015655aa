"""Finding receipts: by key, by many keys, in the order of commits, and by digests."""

import asyncio
import hashlib
from typing import Any

from services.conformance.bench import Bench, to_json
from services.conformance.capabilities import Capability, check
from services.conformance.exchanges import Exchange
from services.conformance.expectations import digest, digest_item, expect, expect_answer, moment

_LOOKUP, _FEED, _DIGESTS = Capability.LOOKUP, Capability.FEED, Capability.DIGESTS
_MOST_KEYS = 500
# A sequence that no tenant reaches: a page after it is empty and says the watermark.
_BEYOND = 10**18 - 1


@check(_LOOKUP, "200 the receipt, 410 `key-expired`, or 404 `receipt-not-found`")
async def _a_receipt_is_read_by_its_key(bench: Bench) -> None:
    sku = await bench.delivered(10)
    for quantity, outcome in ((2, "committed"), (99, "rejected")):
        key = bench.key()
        made = await bench.reserve(sku, quantity, key)
        read = expect_answer(await bench.receipt(key), 200)
        expect(read.receipt == made.receipt, "GET answers another receipt than the call", made, read)
        expect(read.outcome == outcome, f"the receipt is {outcome}", read)
        expect(not read.replayed, "a read is no replay", read)


@check(_LOOKUP, "with `observed_at` (the service's clock, read before the look) and `watermark`")
async def _a_key_without_a_receipt_is_not_found_and_stays_free(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    missing = expect_answer(await bench.receipt(key), 404, "receipt-not-found")
    watermark = missing.document.get("watermark")
    expect(type(watermark) is int and watermark >= 0, "watermark is a whole number", missing)
    expect(moment(missing.document.get("observed_at")) is not None, "observed_at is a time", missing)
    made = expect_answer(await bench.reserve(sku, 2, key), 201)
    expect(
        made.receipt["sequence"] > watermark, "the receipt is newer than the watermark of its absence", missing, made
    )
    expect_answer(await bench.receipt(f"{key}@expiry"), 404, "receipt-not-found")


@check(_LOOKUP, "| path `/v1/receipts/{key}` | bare |")
async def _what_is_no_key_is_refused_in_a_path(bench: Bench) -> None:
    for text in ("short", "a" * 129, f"%22{bench.key()}%22", f"{bench.key()}%20", f"{bench.key()}@other"):
        expect_answer(await bench.receipt(text), 400, "idempotency-key-invalid")


@check(
    _LOOKUP, "with one member per key that was asked for (a key that is listed twice has one), all seen at one moment."
)
async def _many_keys_are_looked_up_at_once(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made, refused = await bench.reserve(sku, 2), await bench.reserve(sku, 99)
    missing = bench.key()
    keys = [made.receipt["key"], refused.receipt["key"], missing, missing]
    seen = expect_answer(await _look_up(bench, keys), 200)
    expected = {keys[0]: made.receipt, keys[1]: refused.receipt, missing: None}
    expect(seen.document.get("receipts") == expected, f"receipts should be {expected}", seen)
    expect(set(seen.document) == {"receipts", "observed_at", "watermark"}, "the answer has three members", seen)
    expect(moment(seen.document["observed_at"]) is not None, "observed_at is a time", seen)
    expect(
        seen.document["watermark"] >= refused.receipt["sequence"], "the watermark covers what was found", refused, seen
    )
    many = [f"{bench.name()}-g1" for _ in range(_MOST_KEYS - 1)]
    seen = expect_answer(await _look_up(bench, [*many, keys[0]]), 200)
    found = [key for key, receipt in seen.document["receipts"].items() if receipt is not None]
    expect(len(seen.document["receipts"]) == _MOST_KEYS and found == [keys[0]], "500 keys are looked up", seen)


@check(_LOOKUP, "| `keys` | 1 to 500 keys |")
async def _a_lookup_of_what_is_no_list_of_keys_is_refused(bench: Bench) -> None:
    key = bench.key()
    path, other = "/v1/receipts/lookup", [("Idempotency-Key", "short"), ("Effect-Not-After", "never")]
    seen = await bench.call("POST", path, other, to_json({"keys": [key]}))
    expect_answer(seen, 200)  # headers of a keyed POST are not looked at
    expect_answer(await bench.get(path), 405, "method-not-allowed")
    for keys in ([], [f"{key}{number}" for number in range(_MOST_KEYS + 1)], ["short"], [f'"{key}"'], [1], key, None):
        expect_answer(await _look_up(bench, keys), 400, "validation-failed")
    too_long = b'{"keys":["%s"]%s}' % (key.encode(), b" " * 131_072)
    expect_answer(await bench.call("POST", path, body=too_long), 413, "payload-too-large")


async def _look_up(bench: Bench, keys: object) -> Exchange:
    return await bench.call("POST", "/v1/receipts/lookup", body=to_json({"keys": keys}))


@check(_FEED, "Receipts come in ascending order of sequence, up to the watermark.")
async def _the_feed_lists_what_was_decided_in_order(bench: Bench) -> None:
    sku, reference = bench.sku(), bench.name()
    start = (await _page(bench, f"after={_BEYOND}")).document["watermark"]
    answers = [
        await bench.deliver(sku, 5),
        await bench.reserve(sku, 2, reference=reference),
        await bench.reserve(sku, 99, reference=reference),
    ]
    answers.append(await bench.move(answers[1].receipt["reservation_id"], "release"))
    made = [answer.receipt for answer in answers]
    page = await _page(bench, f"after={start}&limit=1000&sku={sku}")
    expect(page.document["receipts"] == made, "the feed lists each receipt as it was answered, in order", page)
    watermark = page.document["watermark"]
    expect(watermark >= made[-1]["sequence"], "the watermark covers the receipts", page)
    expect(page.document["next_after"] == watermark, "a page that is not full goes on after the watermark", page)
    numbers = [receipt["sequence"] for receipt in made]
    expect(numbers == sorted(set(numbers)), "sequences rise in the order of commits", *answers)
    page = await _page(bench, f"reference={reference}")
    expect(page.document["receipts"] == made[1:3], "`reference` finds what had it", page)


@check(_FEED, "exclusive: receipts with a higher sequence")
async def _the_feed_goes_on_page_by_page(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = [await bench.reserved(sku, 1) for _ in range(3)]
    seen: list[dict[str, Any]] = []
    after = made[0]["sequence"]
    for _ in range(2):
        page = await _page(bench, f"after={after}&limit=1&sku={sku}")
        seen += page.document["receipts"]
        expect(page.document["next_after"] == seen[-1]["sequence"], "a full page goes on after its last receipt", page)
        after = page.document["next_after"]
    expect(seen == made[1:], "two pages of one receipt have the two that follow", bench.heard[-1])
    last = await _page(bench, f"after={_BEYOND}")
    said = (last.document["receipts"], last.document["next_after"])
    expect(said == ([], _BEYOND), "next_after is never lower than after", last)
    expect(last.document["watermark"] >= after, "a watermark below `after` is shown as it is", last)


@check(_FEED, "Query parameters** are each given at most once, and an unknown one is 400")
async def _a_question_that_could_be_misread_is_refused(bench: Bench) -> None:
    wrong = ("limit=0", "limit=1001", "limit=x", "after=-1", "after=01", "after=1.0", "after=1&after=2", "sequence=1")
    texts = ("reference=", f"reference={'a' * 513}", "sku=", f"sku={'a' * 513}")
    for query in (*wrong, *texts, f"after={10**18}"):
        expect_answer(await bench.get(f"/v1/receipts?{query}"), 400, "validation-failed")


@check(_FEED, "It is decoded as a form's is: UTF-8 in percent signs, `+` is a blank.")
async def _a_question_is_decoded_as_a_form_is(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    made = await bench.reserved(sku, 1, reference=f"{name} ä+b")
    page = await _page(bench, f"reference={name}+%C3%A4%2Bb")
    expect(page.document["receipts"] == [made], "the reference with blank, umlaut and plus is found", page)
    nothing = await _page(bench, "sku=%20")
    expect(nothing.document["receipts"] == [], "what is no SKU finds nothing", nothing)


@check(_FEED, "The feed never skips: a sequence is handed out under a lock that is held until commit")
async def _no_receipt_appears_below_one_that_was_seen(bench: Bench) -> None:
    sku = await bench.delivered(1000)
    after = (await _page(bench, f"after={_BEYOND}")).document["watermark"]
    start, seen, pages = after, [], []
    writing = asyncio.gather(*(bench.reserve(sku, 1) for _ in range(2 * bench.rounds)), return_exceptions=True)
    ended = False
    while not ended:
        ended = writing.done()
        pages.append(await _page(bench, f"after={after}&limit=1000&sku={sku}"))
        seen += [receipt["sequence"] for receipt in pages[-1].document["receipts"]]
        after = pages[-1].document["next_after"]
    for answer in await writing:
        if isinstance(answer, BaseException):
            raise answer
    whole = await _page(bench, f"after={start}&limit=1000&sku={sku}")
    numbers = [receipt["sequence"] for receipt in whole.document["receipts"]]
    expect(len(numbers) == 2 * bench.rounds, "every receipt is in the feed", whole)
    expect(
        seen == numbers, "a reader that went on page by page missed a receipt that committed late", *pages[-2:], whole
    )


async def _page(bench: Bench, query: str) -> Exchange:
    page = expect_answer(await bench.get(f"/v1/receipts?{query}"), 200)
    expect(set(page.document) == {"receipts", "next_after", "watermark"}, "a page has three members", page)
    return page


@check(_DIGESTS, "digest(range)  = sum of its items modulo 2^256", Capability.DEDUPE)
async def _each_range_is_the_sum_of_what_is_below_it(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = [await bench.reserved(sku, 1), (await bench.reserve(sku, 99)).receipt]
    root = await _range(bench, "")
    _sums_up(root)
    for receipt in made:
        prefix = hashlib.sha256(receipt["key"].encode()).hexdigest()[:4]
        middle, leaf = await _range(bench, prefix[:2]), await _range(bench, prefix)
        _sums_up(middle)
        expect(leaf.document["ranges"] == [], "a range of four digits has no ranges", leaf)
        listed = leaf.document["receipts"]
        expected = {name: receipt[name] for name in ("key", "outcome", "receipt_id")}
        expect(expected in listed, f"the range of its key lists {expected}", leaf)
        items = [digest_item(one["key"], one["outcome"], one["receipt_id"]) for one in listed]
        said = (leaf.document["count"], leaf.document["digest"])
        expect(said == (len(items), digest(items)), f"the digest of what is listed is {digest(items)}", leaf)


@check(
    _DIGESTS,
    "they never lag behind it, and a page is of one moment",
    Capability.DEDUPE,
)
async def _a_receipt_counts_at_once(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    prefix = hashlib.sha256(key.encode()).hexdigest()[:4]
    before = await _range(bench, prefix)
    made = await bench.reserved(sku, 1, key)
    after = await _range(bench, prefix)
    # Others may write meanwhile, but hardly into this one of 65,536 ranges.
    items = [int(before.document["digest"], 16), digest_item(key, "committed", made["receipt_id"])]
    said = (after.document["count"], after.document["digest"])
    expect(said == (before.document["count"] + 1, digest(items)), "the range grew by one receipt", before, after)
    expect(after.document["watermark"] >= made["sequence"], "the watermark covers the receipt", after)


@check(_DIGESTS, "anything else is 400 `validation-failed`.")
async def _what_is_no_range_is_refused(bench: Bench) -> None:
    for query in ("prefix=0", "prefix=000", "prefix=00000", "prefix=AB", "prefix=xy", "prefix=00&prefix=00", "after=1"):
        expect_answer(await bench.get(f"/v1/receipts/digests?{query}"), 400, "validation-failed")


async def _range(bench: Bench, prefix: str) -> Exchange:
    page = expect_answer(await bench.get(f"/v1/receipts/digests?prefix={prefix}"), 200)
    members = {"prefix", "count", "digest", "ranges", "receipts", "watermark"}
    expect(set(page.document) == members, f"a range has the members {sorted(members)}", page)
    expect(page.document["prefix"] == prefix, "prefix is what was asked for", page)
    return page


def _sums_up(page: Exchange) -> None:
    ranges, prefix = page.document["ranges"], page.document["prefix"]
    prefixes = [one["prefix"] for one in ranges]
    below = all(one.startswith(prefix) and len(one) == len(prefix) + 2 for one in prefixes)
    expect(below and prefixes == sorted(set(prefixes)), "ranges are the next two digits, ascending", page)
    expect(all(one["count"] > 0 for one in ranges), "ranges are those that are not empty", page)
    said = (page.document["count"], page.document["digest"], page.document["receipts"])
    summed: tuple[int, str, list[object]] = (
        sum(one["count"] for one in ranges),
        digest(int(one["digest"], 16) for one in ranges),
        [],
    )
    expect(said == summed, f"count, digest and receipts should be {summed}", page)


CHECKS = (
    _a_receipt_is_read_by_its_key,
    _a_key_without_a_receipt_is_not_found_and_stays_free,
    _what_is_no_key_is_refused_in_a_path,
    _many_keys_are_looked_up_at_once,
    _a_lookup_of_what_is_no_list_of_keys_is_refused,
    _the_feed_lists_what_was_decided_in_order,
    _the_feed_goes_on_page_by_page,
    _a_question_that_could_be_misread_is_refused,
    _a_question_is_decoded_as_a_form_is,
    _no_receipt_appears_below_one_that_was_seen,
    _each_range_is_the_sum_of_what_is_below_it,
    _a_receipt_counts_at_once,
    _what_is_no_range_is_refused,
)
