"""Signatures of receipts: what is signed, and who is believed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.effects.signatures import sign, wrong_signature
from tests.services.effects.halves import make_intent, make_receipt

BODY = make_receipt(make_intent()).body
SIGNED = BODY | {"signature": sign(BODY, b"key-1")}


def test_a_signature_is_what_the_contract_says() -> None:
    """A vector for whoever writes the other side: HMAC-SHA-256 over the canonical JSON, without the signature."""
    receipt = {"key": "k", "signature": "whatever", "lines": [{"sku": "Ü", "granted": 2}]}
    expected = "hmac-sha256:834bd74f3655dac566e3b81edcd87f0b05b43e9438e020b24af4ee88f2f0aca0"
    assert sign(receipt, b"key-1") == expected


def test_any_key_of_ours_may_have_signed() -> None:
    """The provider's next key is told to the readers before it signs."""
    assert wrong_signature(SIGNED, [b"key-1"]) is None
    assert wrong_signature(SIGNED, [b"key-2", b"key-1"]) is None
    assert wrong_signature(SIGNED, [b"key-2"]) == "its signature is not by any key of ours"


@pytest.mark.parametrize("signature", [None, 7, "", "hmac-sha256:", "ü", SIGNED["signature"].upper()])
def test_what_is_no_signature_is_not_believed(signature: Any) -> None:
    """Missing, of another type, cut, beyond ASCII, or spelled otherwise."""
    assert wrong_signature(BODY | {"signature": signature}, [b"key-1"]) is not None


@given(st.sampled_from(sorted(BODY)), st.none() | st.integers(0, 9) | st.text(max_size=4))
def test_no_member_of_a_signed_receipt_can_be_changed(member: str, value: Any) -> None:
    """Nor can one be added or taken away."""
    changed = SIGNED | {member: value}
    assert (wrong_signature(changed, [b"key-1"]) is None) == (BODY[member] == value)
    assert wrong_signature({name: SIGNED[name] for name in SIGNED if name != member}, [b"key-1"]) is not None
    assert wrong_signature(SIGNED | {"more": value}, [b"key-1"]) is not None
