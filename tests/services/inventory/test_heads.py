"""What is read from a request's head, and what is refused in it; over the wire in test_protocol.py."""

import pytest
from starlette.datastructures import Headers

from services.inventory.heads import declared_bytes, request_id, to_origin_form, waits_to_send


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/receipts", "/v1/receipts"),
        ("http://host/v1/receipts", "/v1/receipts"),
        ("HTTP://user@host:1/v1/re%63eipts", "/v1/receipts"),
        ("http://ho%2Fst/v1", "/v1"),
        ("https://host", "/"),
        ("//host/v1", "//host/v1"),
        ("ftp://host/v1", "ftp://host/v1"),
        ("*", "*"),
    ],
)
def test_a_targets_path_is_what_stands_behind_the_host(target: str, path: str) -> None:
    """The host is what was connected to, whatever it is called."""
    scope = {"path": target, "raw_path": target.encode()}
    to_origin_form(scope)
    assert scope["path"] == path


def test_an_id_is_the_callers_or_a_new_one() -> None:
    """Well-formed and one; else nobody else's."""
    assert request_id(Headers({"x-request-id": "mine-1"})) == "mine-1"
    assert request_id(Headers({})) != request_id(Headers({}))
    assert request_id(Headers(raw=[(b"x-request-id", b"a"), (b"x-request-id", b"a")])) != "a"


def test_what_is_said_about_a_body_is_read() -> None:
    """Its length, and whether it is held back."""
    assert (declared_bytes(Headers({})), declared_bytes(Headers({"content-length": "7"}))) == (0, 7)
    assert waits_to_send(Headers({"expect": "100-Continue"}))
    assert not waits_to_send(Headers({"expect": "something"}))
