"""Tokens: whose they are, what they may do, and that nobody reads them in a message."""

import pytest

from services.inventory.tokens import Grant, Tokens, TokensError, parse_tokens


def test_tokens_are_read_with_their_tenants() -> None:
    """White space is nothing, a tenant may have two tokens, and a token may end in padding."""
    assert parse_tokens("acme=token-a,globex=token-b") == {
        "token-a": Grant(tenant="acme"),
        "token-b": Grant(tenant="globex"),
    }
    assert parse_tokens(" acme=a1 , acme=a2== ") == {"a1": Grant(tenant="acme"), "a2==": Grant(tenant="acme")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "acme",
        "acme=",
        "=token",
        "acme:write=s3cret",
        ":read=s3cret",
        "acme:read:read=s3cret",
        "acme=s3cret,",
        "acme=s3cret,globex",
        "acme=s3cret x",
        "a b=s3cret",
        "acme=s3cret,globex=s3cret",
        "acme=s3cret,acme=s3cret",
        "acme=s3crét",
    ],
)
def test_tokens_that_cannot_be_read_are_refused_without_repeating_them(text: str) -> None:
    """The message says which entry and what to do; a secret is in none of them."""
    with pytest.raises(TokensError, match=r"Entry \d+ of the tokens .*\. .*\.") as error:
        parse_tokens(text)
    assert "s3cr" not in str(error.value)


def test_a_token_may_be_for_reading_alone() -> None:
    """The same tenant, and less."""
    assert parse_tokens("acme=a1,acme:read=a2") == {
        "a1": Grant(tenant="acme", may_write=True),
        "a2": Grant(tenant="acme", may_write=False),
    }


def test_a_token_is_exact_and_its_scheme_is_not() -> None:
    """One header, any case of "Bearer", the whole token."""
    acme, globex = Grant(tenant="acme"), Grant(tenant="globex", may_write=False)
    tokens = Tokens({"token-a": acme, "token-b": globex})
    assert tokens.grant(["bearer token-b"]) == globex
    assert tokens.grant(["Bearer token-a"]) == acme
    for other in ([], ["Bearer token-"], ["Bearer token-aa"], ["Bearer TOKEN-A"], ["Bearer token-a", "Bearer token-b"]):
        assert tokens.grant(other) is None
