"""Tensors as arrays and back: views of the same memory where that is the processor's."""

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .boxes import Box, whole
from .dtypes import Array, dtype_of, name_of
from .errors import ManifestInvalid

# What numpy has no type for: the type of the same width through which the memory is looked at, and how it is named.
_VIEWED: Final = {
    torch.bfloat16: (torch.int16, np.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, np.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, np.uint8, ml_dtypes.float8_e5m2),
}
_VIEWED_BACK: Final[Mapping[Any, Any]] = {np.dtype(seen): (width, kind) for kind, (_, width, seen) in _VIEWED.items()}
_SMALL_TENSOR_BYTES: Final = 4096  # a learning rate that is a tensor; anything longer is no setting


def array_of(tensor: Tensor, what: str, *, fetch: bool = True) -> Array:
    """A tensor as an array: of the same memory where that is the processor's, else a copy of it.

    Args:
        tensor: this process's part of it, where it is sharded.
        what: its name, for the error.
        fetch: whether a device's bytes are wanted, or its shape and type alone.

    Raises:
        ManifestInvalid: it is of a kind that has no such array.
    """
    local = local_of(tensor)
    through, _, seen = _VIEWED.get(local.dtype, (None, None, None))
    try:
        if local.device.type != "cpu":
            local = local.cpu() if fetch else torch.empty(local.shape, dtype=local.dtype)
        local = local.resolve_conj().resolve_neg()
        array: Array = local.numpy() if through is None else local.view(through).numpy().view(seen)
        name_of(array)
    except (TypeError, RuntimeError, ManifestInvalid) as error:
        raise ManifestInvalid(
            f"{what} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}, which a checkpoint cannot hold: "
            f"{error}. Nothing was published."
        ) from error
    return array


def tensor_of(array: Array) -> Tensor:
    """An array as a tensor of the same memory."""
    if array.dtype in _VIEWED_BACK:
        width, kind = _VIEWED_BACK[array.dtype]
        return torch.from_numpy(array.view(width)).view(kind)
    return torch.from_numpy(array)


def local_of(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, without its history."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def box_of(tensor: Tensor, what: str) -> Box | None:
    """Which part of the whole a sharded tensor's local part is; None where it is the whole.

    Raises:
        ManifestInvalid: the parts would not tile the whole: one that is replicated beside being sharded, partial sums,
            strides.
    """
    if not isinstance(tensor, DTensor) or all(isinstance(each, Replicate) for each in tensor.placements):
        return None
    box = list(whole(tensor.shape))
    sharded = [each.dim for each in tensor.placements if type(each) is Shard]
    if len(set(sharded)) == len(tensor.placements):
        for mesh_dimension, axis in enumerate(sharded):
            count, at = tensor.device_mesh.size(mesh_dimension), tensor.device_mesh.get_local_rank(mesh_dimension)
            length = tensor.shape[axis]
            each = -(-length // count)  # as torch.chunk divides
            box[axis] = (min(length, at * each), min(length, (at + 1) * each))
        if tuple(stop - start for start, stop in box) == tuple(local_of(tensor).shape):
            return tuple(box)
    raise ManifestInvalid(
        f"{what} is placed as {tensor.placements}: its local parts do not tile it once. Nothing was published: shard "
        "each dimension over one dimension of the mesh and replicate none, or give the items by hand with their boxes."
    )


def small_tensor(value: Any, where: str) -> Any:
    """What a setting may be beside JSON's types: a learning rate that is a tensor."""
    if isinstance(value, Tensor) and value.nbytes <= _SMALL_TENSOR_BYTES:
        array = array_of(value, where)
        return {"dtype": name_of(array), "shape": list(array.shape), "bytes": array.tobytes().hex()}
    raise ManifestInvalid(
        f"{where} is a {type(value).__name__}, which has no place in a checkpoint's values. Nothing was published: "
        "this adapter keeps an optimizer's tensors where they lie directly in its state."
    )


def tensor_told(told: Any) -> Tensor:
    """The tensor that was written so."""
    array = np.frombuffer(bytearray.fromhex(told["bytes"]), dtype_of(told["dtype"])).reshape(told["shape"])
    return tensor_of(array)
