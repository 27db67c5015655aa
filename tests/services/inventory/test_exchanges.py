"""One request and its answer, as they are logged and counted."""

import pytest

from services.inventory.exchanges import Exchange, known_method


def exchange(route: str, status: int | None) -> Exchange:
    """A request and its answer."""
    return Exchange(request_id="r", method="GET", route=route, seconds=0.1234567, status=status)


def test_a_probe_is_noise_only_while_it_goes_well() -> None:
    """One that fails is what somebody will look for."""
    assert exchange("/livez", 200).is_noise
    assert exchange("/metrics", 200).is_noise
    assert not exchange("/readyz", 503).is_noise
    assert not exchange("/livez", None).is_noise
    assert not exchange("/v1/receipts", 200).is_noise


@pytest.mark.parametrize(("method", "known"), [("GET", "GET"), ("get", "other"), ("M-SEARCH", "other")])
def test_a_callers_word_is_no_label(method: str, known: str) -> None:
    """A series for each would fill any memory."""
    assert known_method(method) == known


def test_its_fields_are_what_operators_search_by() -> None:
    """And nothing else: no path, no body, no token."""
    assert list(exchange("/livez", 200).fields()) == [
        "method", "route", "status", "outcome", "replayed", "problem", "seconds", "tenant", "key", "request_id",
    ]  # fmt: skip
    assert exchange("/livez", 200).fields()["seconds"] == 0.123457
