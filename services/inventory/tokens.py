"""Bearer tokens: whose they are and what they may do.

- A token stands for one tenant, and either for everything or for reading alone.
- Tokens are compared in constant time, and no message repeats one.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TENANT = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BEARER = re.compile("[A-Za-z0-9._~+/-]+=*")
_READ = ":read"


class TokensError(ValueError):
    """The tokens cannot be read: the message says which entry and why, and repeats no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a token stands for."""

    tenant: str
    may_write: bool = True  # else it may GET and look up: no keyed call, no void


def parse_tokens(text: str) -> dict[str, Grant]:
    """Read `TENANT=TOKEN,TENANT:read=TOKEN`: each token and its grant. A tenant may have several tokens.

    Raises:
        TokensError: empty, malformed, or one token for two entries.
    """
    tokens: dict[str, Grant] = {}
    for number, entry in enumerate(text.split(","), start=1):
        owner, _, token = entry.strip().partition("=")
        tenant = owner.removesuffix(_READ)
        if not _TENANT.fullmatch(tenant) or not _BEARER.fullmatch(token):
            raise TokensError(
                f"Entry {number} of the tokens is not TENANT=TOKEN or TENANT:read=TOKEN. A tenant is letters, digits "
                "and . _ - and a token is not empty and has no spaces. Write acme=TOKEN,globex=TOKEN,acme:read=TOKEN."
            )
        if token in tokens:
            raise TokensError(
                f"Entry {number} of the tokens repeats an earlier entry's token, and a token stands for one tenant. "
                "Give each entry a token of its own."
            )
        tokens[token] = Grant(tenant=tenant, may_write=owner == tenant)
    return tokens


class Tokens:
    """The tokens that the service knows."""

    def __init__(self, tokens: Mapping[str, Grant]) -> None:
        self._grants = [(_digest(token.encode()), grant) for token, grant in tokens.items()]

    def grant(self, authorization: Sequence[str]) -> Grant | None:
        """What the one Authorization header stands for, if it is a token that is known."""
        if len(authorization) != 1:
            return None
        scheme, _, token = authorization[0].partition(" ")
        presented = _digest(token.strip(" ").encode())
        found = None
        for known, grant in self._grants:  # all of them, always: the time taken says nothing
            if hmac.compare_digest(known, presented):
                found = grant
        return found if scheme.lower() == "bearer" else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
