"""Versions: positions, never residues."""

import pytest

from services.checkpoints.errors import ManifestInvalid
from services.checkpoints.versions import NAMES, check_versions


def test_versions_are_non_negative_integers_by_known_names() -> None:
    """All of them may be zero."""
    assert check_versions(dict.fromkeys(NAMES, 0)) == dict.fromkeys(NAMES, 0)


@pytest.mark.parametrize(
    "raw", [{"updates": -1}, {"updates": True}, {"updates": 1.0}, {"step": 1}, [], {"updates": 2**63}]
)
def test_anything_else_is_refused(raw: object) -> None:
    """A step of another name is none that a contract can compare."""
    with pytest.raises(ManifestInvalid):
        check_versions(raw)
