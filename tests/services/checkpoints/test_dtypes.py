"""Element types: an allow-list."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from services.checkpoints.dtypes import DTYPES, check_finite, dtype_of, is_finite, name_of
from services.checkpoints.errors import ManifestInvalid, NonFinite


@pytest.mark.parametrize("name", DTYPES)
def test_a_name_and_its_type_are_one(name: str) -> None:
    """For arrays that are read back, too."""
    assert name_of(np.zeros(3, dtype_of(name))) == name


@pytest.mark.parametrize(
    "array", [np.array([{}]), np.zeros(1, "i4,f4"), np.zeros(1, "U3"), np.zeros(1, ">f4"), np.zeros(1, "M8[s]")]
)
def test_nothing_that_refers_elsewhere_or_reads_differently_is_taken(array: Any) -> None:
    """C47: no object, no structure, no text; and one byte order."""
    with pytest.raises(ManifestInvalid):
        name_of(array)


@pytest.mark.parametrize("name", ["object", "O", "<f4", "float", "", None, "U3"])
def test_other_names_are_refused(name: object) -> None:
    """Numpy would take some of them."""
    with pytest.raises(ManifestInvalid):
        dtype_of(name)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64, ml_dtypes.float8_e5m2]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_element_anywhere_is_seen(dtype: Any, bad: float) -> None:
    """In the stored type, also where a sum would overflow."""
    array = np.full((600, 1000), 1, dtype)
    array[0, 0] = 50000.0  # the largest that float8_e5m2 has is 57344
    assert is_finite(array)
    array[599, 999] = bad
    assert not is_finite(array)
    with pytest.raises(NonFinite, match="item w"):
        check_finite(array, "item w")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_number_of_a_small_type_is_finite_or_not_as_its_library_says(name: str) -> None:
    """All bit patterns, one by one."""
    dtype = dtype_of(name)
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"uint{8 * dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        said = np.isfinite(bits.view(dtype)).tolist()
    assert [is_finite(each) for each in bits.view(dtype).reshape(-1, 1)] == said
    assert {True, False} == set(said)


def test_integers_are_always_finite() -> None:
    """And so is nothing at all."""
    assert is_finite(np.full(3, 2**62))
    assert is_finite(np.zeros((0, 3)))
