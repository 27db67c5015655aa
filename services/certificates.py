"""Whose certificates a caller of the inventory trusts."""

import ssl
from functools import cache

import httpx


@cache
def trusted(ca_file: str | None) -> ssl.SSLContext:
    """The authorities that may vouch for the inventory: those of one file and no others, or else the public ones.

    Read once: it takes as long as ten calls.
    """
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=ca_file)
