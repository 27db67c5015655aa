"""Timeline versions: where a run stands, as non-negative integers that only grow within a lineage."""

from collections.abc import Mapping
from typing import Final

from .errors import ManifestInvalid

Versions = Mapping[str, int]

NAMES: Final = (
    "attempts",  # optimizer steps tried: updates + skips
    "updates",  # applied
    "skips",  # not applied: a scaler's overflow
    "microbatch",  # position in the open accumulation window
    "forwards",  # forward passes, which may touch persistent buffers
    "scheduler",  # scheduler steps
    "cursor",  # samples consumed by the whole run; epoch and position are derived
    "fetched",  # samples read ahead; informational, >= cursor
    "draws",  # of the run's one global sample stream
    "in_flight",  # microbatches inside a pipeline
)
LARGEST: Final = 2**63 - 1


def check_versions(raw: object) -> dict[str, int]:
    """Versions as they stand in a record.

    Raises:
        ManifestInvalid: an unknown name, or a value that is not a non-negative integer.
    """
    if not isinstance(raw, Mapping):
        raise ManifestInvalid("versions are an object of names and integers")
    for name, value in raw.items():
        if name not in NAMES:
            raise ManifestInvalid(f"{name!r} is not a version; the versions are {', '.join(NAMES)}")
        if type(value) is not int or not 0 <= value <= LARGEST:
            raise ManifestInvalid(f"version {name} is {value!r}, not a non-negative integer")
    return dict(raw)
