"""The element types that a checkpoint may hold, by name: fixed sizes, little-endian, nothing that refers elsewhere."""

import sys
from typing import Any, Final

import ml_dtypes
import numpy as np

from .errors import ManifestInvalid, NonFinite

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
_EXACT: Final = frozenset("biu")
_SCAN: Final = 1 << 18  # elements a step: the scan's intermediate stays inside the cache


def dtype_of(name: object) -> np.dtype[Any]:
    """The type of an allowed name.

    Raises:
        ManifestInvalid: any other name, such as object or a structured type.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise ManifestInvalid(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def name_of(array: Array) -> str:
    """The name of an array's type.

    Raises:
        ManifestInvalid: the type is not allowed, or its bytes are in the other order.
    """
    name = array.dtype.name
    if name not in DTYPES or array.dtype.hasobject or array.dtype.fields is not None:
        raise ManifestInvalid(f"dtype {array.dtype} is not one of {', '.join(DTYPES)}: convert the array by name first")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        raise ManifestInvalid(f"dtype {array.dtype} is big-endian: a checkpoint is little-endian, convert it first")
    return name


# The bits that are all set in NaN and infinity (in float8_e4m3fn, which has no infinity: in NaN), and in nothing else.
_SPECIAL: Final = {
    dtype_of(name): mask
    for name, mask in (
        ("float16", np.uint16(0x7C00)),
        ("bfloat16", np.uint16(0x7F80)),
        ("float8_e4m3fn", np.uint8(0x7F)),
        ("float8_e5m2", np.uint8(0x7C)),
    )
}


def is_finite(array: Array) -> bool:
    """No element is NaN or infinite, looked at in the stored type itself."""
    if array.dtype.kind in _EXACT:
        return True
    flat = array.reshape(-1)
    mask = _SPECIAL.get(array.dtype)
    if mask is not None:  # of small types the bits are many times faster to look at than the numbers
        bits = flat.view(mask.dtype)
        return not any(bool((bits[at : at + _SCAN] & mask == mask).any()) for at in range(0, bits.size, _SCAN))
    with np.errstate(invalid="ignore"):
        return all(bool(np.isfinite(flat[at : at + _SCAN]).all()) for at in range(0, flat.size, _SCAN))


def check_finite(array: Array, what: str) -> None:
    """The array is finite.

    Raises:
        NonFinite: it is not; the message names the item.
    """
    if not is_finite(array):
        raise NonFinite(f"{what} holds NaN or infinity; nothing was published, the previous checkpoint stands")
