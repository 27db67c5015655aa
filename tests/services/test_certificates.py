"""Whose certificates a caller trusts: read once; what a file's authorities vouch for is tested over real TLS."""

import pytest

from services.certificates import trusted
from tests.certificates import Authority


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
