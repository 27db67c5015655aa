"""Signatures of receipts, as a reader of receipts computes them.

`hmac-sha256:` and 64 hex digits: HMAC-SHA-256, under a key that provider and reader share, over the RFC 8785 canonical
JSON of the receipt without its member `signature`. Any of the reader's keys may have signed: so one side can change its
keys after the other.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from services.effects.keys import canonical

ALGORITHM = "hmac-sha256"
MEMBER = "signature"


def sign(receipt: Mapping[str, Any], key: bytes) -> str:
    """The signature of a receipt under a key.

    Raises:
        InvalidEffect: the receipt has no canonical JSON.
    """
    signed = {member: value for member, value in receipt.items() if member != MEMBER}
    return f"{ALGORITHM}:{hmac.new(key, canonical(signed), hashlib.sha256).hexdigest()}"


def wrong_signature(receipt: Mapping[str, Any], keys: Sequence[bytes]) -> str | None:
    """Why a receipt is not to be believed; None when one of the keys has signed it.

    Raises:
        InvalidEffect: the receipt has no canonical JSON.
    """
    signature = receipt.get(MEMBER)
    if not isinstance(signature, str):
        return "it is not signed"
    if not signature.isascii() or not any(hmac.compare_digest(sign(receipt, key), signature) for key in keys):
        return "its signature is not by any key of ours"
    return None
