"""Effect-Supersedes: a redo and its former generations never both land."""

from functools import partial

from services.conformance.bench import PAST, Bench, to_json
from services.conformance.capabilities import Capability, check
from services.conformance.expectations import expect, expect_answer

_SUPERSEDES = Capability.SUPERSEDES


@check(_SUPERSEDES, "Each key that has no receipt is closed: it gets a tombstone with reason `superseded`.")
async def _a_redo_closes_the_keys_that_never_came(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    former = [f"{name}-g{number}" for number in (1, 2, 10)]
    redo = expect_answer(await bench.reserve(sku, 2, f"{name}-g11", supersedes=former), 201)
    newest_first = [former[2], former[1], former[0]]
    expect(redo.receipt["supersedes"] == newest_first, "the receipt lists former keys, newest first", redo)
    numbers = []
    for key in newest_first:
        late = expect_answer(await bench.reserve(sku, 2, key), 410, "key-voided")
        said = (late.receipt["key"], late.receipt["kind"], late.receipt["reason"])
        expect(said == (key, "void", "superseded"), "a former key is closed by a tombstone: superseded", redo, late)
        numbers.append(late.receipt["sequence"])
    expect([*numbers, redo.receipt["sequence"]] == sorted({*numbers, redo.receipt["sequence"]}),
           "tombstones are numbered before the redo's receipt, newest generation first", redo)  # fmt: skip
    expect(await bench.balances(sku) == (10, 8, 0, 2), "two generations landed", redo)


@check(_SUPERSEDES, "409 `predecessor-committed`, stored, with the newest such receipt as `predecessor`.")
async def _a_redo_over_a_committed_generation_is_refused(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    former = await bench.reserved(sku, 2, f"{name}-g1")
    older = [f"{name}-g2", f"{name}-g1"]
    redo = await bench.reserve(sku, 2, f"{name}-g3", supersedes=older)
    expect_answer(redo, 409, "predecessor-committed")
    expect(redo.document["predecessor"] == former, "predecessor is the former generation's receipt", redo)
    expect(redo.outcome == "rejected", "the refusal is a stored receipt", redo)
    # Closed also when the redo itself is rejected.
    expect_answer(await bench.reserve(sku, 2, f"{name}-g2"), 410, "key-voided")
    expect(await bench.balances(sku) == (10, 8, 0, 2), "two generations landed", redo)


@check(_SUPERSEDES, "| committed reserve or confirm whose reservation is released or expired | no |")
async def _a_redo_over_a_released_generation_passes(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    former = await bench.reserved(sku, 2, f"{name}-g1")
    expect_answer(await bench.move(former["reservation_id"], "release"), 200)
    expect_answer(await bench.reserve(sku, 2, f"{name}-g2", supersedes=[f"{name}-g1"]), 201)
    expect(await bench.balances(sku) == (10, 8, 0, 2), "one generation is taken", bench.heard[-1])


@check(_SUPERSEDES, "| rejected, voided | no |")
async def _a_redo_over_a_rejected_generation_passes(bench: Bench) -> None:
    sku, name = await bench.delivered(1), bench.name()
    expect_answer(await bench.reserve(sku, 2, f"{name}-g1"), 409, "insufficient-stock")
    expect_answer(await bench.deliver(sku, 9), 201)
    expect_answer(await bench.reserve(sku, 2, f"{name}-g2", supersedes=[f"{name}-g1"]), 201)
    # A redo of a redo passes over both.
    older = [f"{name}-g2", f"{name}-g1"]
    expect_answer(await bench.reserve(sku, 99, f"{name}-g3", supersedes=older), 409, "predecessor-committed")


@check(_SUPERSEDES, "| committed delivery or release | yes: it is never taken back |")
async def _a_redo_over_a_delivery_is_refused(bench: Bench) -> None:
    sku, name = bench.sku(), bench.name()
    expect_answer(await bench.deliver(sku, 5, f"{name}-g1"), 201)
    redo = await bench.post("/v1/deliveries", {"sku": sku, "quantity": 5}, f"{name}-g2", supersedes=[f"{name}-g1"])
    expect_answer(redo, 409, "predecessor-committed")
    expect(await bench.balances(sku) == (5, 5, 0, 0), "a delivery was done in two generations", redo)


@check(_SUPERSEDES, "If the redo ends without a receipt (412, 404, a delivery's 400), none of this has happened.")
async def _a_redo_without_a_receipt_closes_nothing(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    older = [f"{name}-g1"]
    late = await bench.reserve(sku, 2, f"{name}-g2", supersedes=older, not_after=PAST)
    # Without a judged deadline there is nothing to see here; that is not_after's finding.
    if late.problem == "not-after-passed":
        expect_answer(await bench.reserve(sku, 2, f"{name}-g1"), 201)
    name = bench.name()
    missing = await bench.move(f"{bench.run}-nothing", "release", f"{name}-g2", supersedes=[f"{name}-g1"])
    expect_answer(missing, 404, "reservation-not-found")
    expect_answer(await bench.reserve(sku, 2, f"{name}-g1"), 201)


@check(_SUPERSEDES, "Of a confirm, release or expiry, refused or not: those of its reservation.")
async def _a_release_refused_for_its_former_generation_names_its_reservation(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    given, kept = await bench.reserved(sku, 2), await bench.reserved(sku, 3)
    former = expect_answer(await bench.move(given["reservation_id"], "release", f"{name}-g1"), 200)
    # Whether there is a reservation is seen before whether a former generation stands.
    missing = await bench.move(f"{bench.run}-nothing", "release", f"{name}-g2", supersedes=[f"{name}-g1"])
    expect_answer(missing, 404, "reservation-not-found")
    redo = await bench.move(kept["reservation_id"], "release", f"{name}-g2", supersedes=[f"{name}-g1"])
    expect_answer(redo, 409, "predecessor-committed")
    expect(redo.document["predecessor"] == former.receipt, "predecessor is the release that stands", former, redo)
    said = (redo.receipt["reservation_id"], redo.receipt["lines"])
    expected = (kept["reservation_id"], [{"sku": sku, "requested": 3, "granted": 0}])
    expect(said == expected, f"reservation_id and lines should be {expected}", redo)
    expect(await bench.balances(sku) == (10, 7, 0, 3), "a refused release moved something", redo)


@check(_SUPERSEDES, "Empty, an empty element, the own key, more than 16, or what is no key")
async def _a_list_that_cannot_be_former_generations_is_refused(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    own = f"{name}-g20"
    many = ", ".join(f"{name}-g{number}" for number in range(1, 18))
    for text in (
        "",
        own,
        "short",
        f"{name}-g1,",
        f"{name}-g1,,{name}-g2",
        many,
        f"{name}-g1@expiry",
    ):
        headers = [("Idempotency-Key", own), ("Effect-Not-After", "2999-01-01T00:00:00Z"), ("Effect-Supersedes", text)]
        body = to_json({"lines": [{"sku": sku, "quantity": 1}]})
        expect_answer(await bench.call("POST", "/v1/reservations", headers, body), 400, "validation-failed")


@check(_SUPERSEDES, "in one header field or several (which are one list)")
async def _a_list_may_be_split_and_quoted(bench: Bench) -> None:
    sku, name = await bench.delivered(10), bench.name()
    older = [f"{name}-g{number}" for number in range(1, 16)]
    headers = [
        ("Idempotency-Key", f"{name}-g17"),
        ("Effect-Not-After", "2999-01-01T00:00:00Z"),
        ("Effect-Supersedes", f'"{older[0]}"\t , {older[1]}'),
        ("Effect-Supersedes", ",".join([*older[2:], older[0]])),
    ]
    body = to_json({"lines": [{"sku": sku, "quantity": 1}]})
    redo = expect_answer(await bench.call("POST", "/v1/reservations", headers, body), 201)
    expect(redo.receipt["supersedes"] == older[::-1], "sixteen keys, split, quoted and one twice, are one list", redo)
    again = await bench.post("/v1/reservations", body, f"{name}-g17")
    # It is not in the fingerprint: repeated without the list, the answer is never "another request".
    expect(again.problem != "idempotency-key-reused", "Effect-Supersedes is not in the fingerprint", redo, again)


@check(_SUPERSEDES, "A redo and its former generations cannot both land")
async def _a_redo_and_its_delayed_former_generation_at_once_are_one_effect(bench: Bench) -> None:
    sku = await bench.delivered(10 * bench.rounds)
    for number in range(bench.rounds):
        name = bench.name()
        former = partial(bench.reserve, sku, 2, f"{name}-g1")
        redo = partial(bench.reserve, sku, 2, f"{name}-g2", supersedes=[f"{name}-g1"])
        pair = [former, redo] if number % 2 else [redo, former]
        answers = await bench.together(*pair)
        said = sorted(answer.said for answer in answers)
        apart = said in (["201 committed", "409 predecessor-committed"], ["201 committed", "410 key-voided"])
        expect(apart, f"of a redo and its former generation one is executed; it was {said}", *answers)
    expect((await bench.balances(sku))[3] == 2 * bench.rounds, "one generation of each took its units", bench.heard[-1])


CHECKS = (
    _a_redo_closes_the_keys_that_never_came,
    _a_redo_over_a_committed_generation_is_refused,
    _a_redo_over_a_released_generation_passes,
    _a_redo_over_a_rejected_generation_passes,
    _a_redo_over_a_delivery_is_refused,
    _a_redo_without_a_receipt_closes_nothing,
    _a_release_refused_for_its_former_generation_names_its_reservation,
    _a_list_that_cannot_be_former_generations_is_refused,
    _a_list_may_be_split_and_quoted,
    _a_redo_and_its_delayed_former_generation_at_once_are_one_effect,
)
