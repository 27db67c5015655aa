"""S2 to S4 and what is held: one SKU's movements in order, against its stock row. Pure; nothing is believed."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from services.inventory.verification.findings import Fault, Rule, shown

_BALANCES = ("received", "available", "held", "consumed")


def check(movements: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    """What is wrong with a SKU.

    Args:
        movements: in order of version; each has its columns, the stock row's as `stock_...`, and what the
            reservations that are held and consumed take as `sum_held` and `sum_consumed`.
    """
    sums = dict.fromkeys(_BALANCES, 0)
    last: Mapping[str, Any] = {}
    number = 0
    for number, last in enumerate(movements, start=1):
        if last["version"] != number:
            yield Rule.S4, f"movement {shown(last['version'])}", f"movement {number}"
            return
        for name in _BALANCES:
            sums[name] += last[name]
        below = [name for name in _BALANCES if sums[name] < 0]
        if below or last["received"] != last["available"] + last["held"] + last["consumed"]:
            yield Rule.S2, f"{shown(sums)} after movement {number}", "received as the sum of the others, none below 0"
            return
    yield from _check_stock(number, sums, last)


def _check_stock(number: int, sums: Mapping[str, int], last: Mapping[str, Any]) -> Iterator[Fault]:
    stock = {name: last[f"stock_{name}"] for name in _BALANCES}
    if last["stock_version"] is None:
        yield Rule.S3, "no stock row", f"{shown(dict(sums))}, the sum of its movements"
        return
    if min(stock.values()) < 0 or stock["received"] != stock["available"] + stock["held"] + stock["consumed"]:
        yield Rule.S2, f"stock {shown(stock)}", "received as the sum of the others, none below 0"
    if stock != sums:
        yield Rule.S3, f"stock {shown(stock)}", f"{shown(dict(sums))}, the sum of its movements"
    if last["stock_version"] != number:
        yield Rule.S4, f"version {last['stock_version']} in stock", f"{number}, its last movement"
    for name in ("held", "consumed"):
        reserved = int(last[f"sum_{name}"] or 0)
        if reserved != stock[name]:
            yield Rule.S6, f"{reserved} in reservations that are {name}", f"{stock[name]}, as in the stock row"
