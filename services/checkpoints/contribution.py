"""What one contributor gives to a checkpoint: its bytes, and a record of them that is written last."""

from dataclasses import dataclass

from .boxes import Box, Shape, count_of, shape_of
from .dtypes import dtype_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedItem:
    """One captured item, its bytes already in staging.

    Attributes:
        name: unique among this contributor's items.
        role: a role of the contract.
        placement: sharded, replicated, per_contributor or global, as the contract places it.
        dtype: a name of dtypes.DTYPES.
        global_shape: of the whole array; of this contributor's own where it is per_contributor.
        box: the part that is held here; the whole where it is not sharded.
        buffer: the item's bytes, C order, little-endian; written without a copy where it begins at a multiple of 4096.
        digest: blake3 of exactly these bytes.
        finite: no NaN and no infinity in them.
    """

    name: str
    role: str
    placement: str
    dtype: str
    global_shape: Shape
    box: Box
    buffer: memoryview
    digest: str
    finite: bool

    @property
    def nbytes(self) -> int:
        """How many bytes the box has."""
        return count_of(shape_of(self.box)) * dtype_of(self.dtype).itemsize
