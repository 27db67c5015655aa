"""Whose certificates a caller trusts: read once; what a file's authorities vouch for is tested over real TLS."""

import asyncio

import httpx
import pytest

from services.certificates import trusted
from services.cli.inventory_client import Balance, read_stock
from services.reconciliation import provider_half
from tests.activities.peer import Peer, answering, http
from tests.certificates import Authority

EMPTY_FEED = http(200, {"receipts": [], "next_after": 0, "watermark": 0})
STOCK = {"sku": "FILTER-A", "received": 3, "available": 3, "held": 0, "consumed": 0, "version": 1}


def test_without_a_file_the_public_authorities_are_trusted_and_names_are_checked() -> None:
    """And nothing of the environment's."""
    context = trusted(None)
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 50
    assert trusted(None) is context


def test_with_a_file_only_its_authorities_are_trusted(authority: Authority) -> None:
    """A private authority vouches for the inventory: no public one can."""
    context = trusted(str(authority.ca_file))
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_file_without_certificates_is_refused() -> None:
    """It would trust nobody, or everybody."""
    with pytest.raises(OSError, match=r"(?i)certificate|pem"):
        trusted(__file__)


async def test_an_audit_and_the_command_line_trust_the_file_that_they_are_told(authority: Authority) -> None:
    """The worker is not the only caller; without the file each of them refuses."""
    tls, ca_file = authority.server("IP:127.0.0.1"), str(authority.ca_file)
    async with Peer(answering(EMPTY_FEED, EMPTY_FEED), tls=tls) as peer:
        assert (await provider_half.read(peer.url, "token-a", ca_file=ca_file)).receipts == ()
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await provider_half.read(peer.url, "token-a")
    async with Peer(answering(http(200, STOCK)), tls=tls) as peer:
        found = await asyncio.to_thread(read_stock, peer.url, "token-a", ["FILTER-A"], ca_file=ca_file)
        assert found == {"FILTER-A": Balance(**STOCK)}  # type: ignore[arg-type]
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(read_stock, peer.url, "token-a", ["FILTER-A"])
