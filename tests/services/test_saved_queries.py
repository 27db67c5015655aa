"""The links that an operator opens; tests/faults/test_surfaces.py proves what the queries find."""

from urllib.parse import parse_qs, urlsplit

import pytest

from services.saved_queries import SAVED_QUERIES, link, saved_queries


def test_each_query_has_a_title_and_a_link_that_says_the_same() -> None:
    """Decoded by the browser, it is the query."""
    saved = saved_queries("http://localhost:8233", "default")
    assert [(one["title"], one["query"]) for one in saved] == [(one.title, one.query) for one in SAVED_QUERIES]
    for one in saved:
        parts = urlsplit(one["url"])
        assert (parts.netloc, parts.path) == ("localhost:8233", "/namespaces/default/workflows")
        assert parse_qs(parts.query) == {"query": [one["query"]]}


@pytest.mark.parametrize("ui_url", ["https://ui.example/base", "https://ui.example/base/"])
def test_a_ui_below_a_path_and_an_odd_namespace_are_addressed(ui_url: str) -> None:
    """Nothing in a name becomes another part of the address."""
    address = link(ui_url, "a/b c.acct", "A = 'x&y'")
    assert address == "https://ui.example/base/namespaces/a%2Fb%20c.acct/workflows?query=A%20%3D%20%27x%26y%27"
