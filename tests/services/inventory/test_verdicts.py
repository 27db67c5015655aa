"""Decisions, without a database."""

from services.inventory.problems import Problem
from services.inventory.verdicts import granted, refuse_reservation, refused


def test_what_can_be_taken_is_decided_without_a_database() -> None:
    """An unknown SKU goes before a short one; what is exactly enough is enough."""
    assert refuse_reservation({"A": 2}, {"A": 2}) is None
    short = refuse_reservation({"A": 3}, {"A": 2})
    unknown = refuse_reservation({"A": 3, "B": 1}, {"A": 2})
    assert short is not None
    assert unknown is not None
    assert (short.reason, unknown.reason) == (Problem.INSUFFICIENT_STOCK, Problem.UNKNOWN_SKU)
    assert not short.movements
    assert [line.granted for line in short.lines] == [0]


def test_lines_are_given_in_full_or_not_at_all() -> None:
    """There is no partial grant."""
    wanted = {"A": 3, "B": 1}
    assert [(line.sku, line.requested, line.granted) for line in granted(wanted)] == [("A", 3, 3), ("B", 1, 1)]
    assert [(line.sku, line.requested, line.granted) for line in refused(wanted)] == [("A", 3, 0), ("B", 1, 0)]
