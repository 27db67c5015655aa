"""Tensors and arrays are the same memory, whatever numpy knows of the type."""

import numpy as np
import pytest
import torch

from services.checkpoints.dtypes import DTYPES, dtype_of, name_of
from services.checkpoints.errors import ManifestInvalid
from services.checkpoints.torch_tensors import array_of, small_tensor, tensor_of, tensor_told


@pytest.mark.parametrize("name", DTYPES)
def test_every_type_of_a_checkpoint_is_a_view_and_comes_back(name: str) -> None:
    """Every bit pattern, NaN with its payload too; a change on one side is seen on the other."""
    width = dtype_of(name).itemsize
    bits = torch.arange(256, dtype=torch.uint8).repeat(width) & (1 if name == "bool" else 255)
    tensor = bits.view(getattr(torch, name)).reshape(4, -1).T
    array = array_of(tensor, "it")
    assert (name_of(array), array.shape) == (name, tuple(tensor.shape))
    assert array.ctypes.data == tensor.data_ptr()
    again = tensor_of(np.ascontiguousarray(array))
    assert again.dtype == tensor.dtype
    assert again.view(torch.uint8).equal(tensor.contiguous().view(torch.uint8))
    tensor.zero_()
    assert array.tobytes() == bytes(array.nbytes)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.zeros(2, dtype=torch.float8_e4m3fnuz),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_named(tensor: torch.Tensor) -> None:
    """Never converted."""
    with pytest.raises(ManifestInvalid, match="a checkpoint cannot hold"):
        array_of(tensor, "it")


def test_a_tensor_among_the_settings_is_kept_when_it_is_small() -> None:
    """A learning rate is; a moment in a list is not."""
    rate = torch.tensor(0.1, dtype=torch.bfloat16)
    back = tensor_told(small_tensor(rate, "lr"))
    assert (back.dtype, back.shape, back.item()) == (rate.dtype, rate.shape, rate.item())
    with pytest.raises(ManifestInvalid, match="no place in a checkpoint's values"):
        small_tensor(torch.zeros(2000), "moments")
