"""A state: marks that begin before the first byte changes, and a restore that is whole or nothing."""

import numpy as np
import pytest

from services.checkpoints.errors import Incompatible
from services.checkpoints.state import Item, State, Versioned


def test_a_mark_is_odd_while_a_mutation_is_under_way_and_never_returns() -> None:
    """Before and after differ even where the counters do not."""
    versions = Versioned({"updates": 0}, sources=("model", "buffers"))
    seen = [dict(versions.read())]
    with versions.mutation("model"):
        seen.append(dict(versions.read()))
        versions.advance(updates=1)
    seen.append(dict(versions.read()))
    assert seen == [{"model": 0, "buffers": 0}, {"model": 1, "buffers": 0}, {"model": 2, "buffers": 0}]
    assert versions.timeline() == {"updates": 1}


def test_of_two_mutations_side_by_side_the_last_one_ends_it() -> None:
    """The mark stays odd as long as anybody mutates."""
    versions = Versioned({})
    versions.begin()
    versions.begin()
    versions.end()
    assert versions.read() == {"model": 1}
    versions.end()
    assert versions.read() == {"model": 2}


def test_a_mutation_that_failed_leaves_its_mark_odd_until_a_restore() -> None:
    """D13: half-changed bytes are no state."""
    versions = Versioned({"updates": 3})
    with pytest.raises(ZeroDivisionError), versions.mutation():
        raise ZeroDivisionError
    assert versions.read() == {"model": 1}
    versions.adopt({"updates": 2})
    assert versions.read() == {"model": 2}
    assert versions["updates"] == 2


def test_counters_move_inside_of_a_mutation_only() -> None:
    """A counter that moves beside its bytes says what they are not."""
    versions = Versioned({"updates": 0})
    with pytest.raises(ValueError, match="inside of a mutation"):
        versions.advance(updates=1)
    with pytest.raises(ValueError, match="inside of a mutation"):
        versions.set(updates=1)
    with pytest.raises(ValueError, match="without having begun"):
        versions.end()


def state(**arrays: np.ndarray) -> State:
    """A state of parameters."""
    items = {name: Item(role="param", array=array) for name, array in arrays.items()}
    return State(items=items, versions=Versioned({"updates": 1}), values={"scale": 2.0})


def test_a_restore_swaps_arrays_values_and_counters_in() -> None:
    """In place: who holds the array sees the restored bytes."""
    live = state(a=np.zeros(3), b=np.zeros((2, 2), np.float32))
    before = live.versions.read()
    live.adopt(
        arrays={"a": np.ones(3), "b": np.full((2, 2), 5, np.float32)}, versions={"updates": 7}, values={"scale": 4.0}
    )
    assert live.items["a"].array.tolist() == [1, 1, 1]
    assert live.items["b"].array.tolist() == [[5, 5], [5, 5]]
    assert (live.versions.timeline(), live.values) == ({"updates": 7}, {"scale": 4.0})
    assert live.versions.read() != before


def test_a_restore_that_does_not_fit_names_every_difference_and_touches_nothing() -> None:
    """C43: shape, dtype, a missing name, an extra name and a read-only array, all at once."""
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    live = state(a=np.zeros((1, 3)), b=np.zeros(2, np.float32), c=np.zeros(1), d=frozen, e=np.zeros(1))
    given = {"a": np.ones((4, 3)), "b": np.ones(2), "d": np.ones(2), "e": np.ones(1), "f": np.ones(1)}
    with pytest.raises(Incompatible) as caught:
        live.adopt(arrays=given, versions={"updates": 9}, values={})
    assert [line.partition(":")[0] for line in caught.value.differences] == ["c", "f", "a", "b", "d"]
    assert not any(item.array.any() for item in live.items.values())
    assert (live.versions.timeline(), live.values) == ({"updates": 1}, {"scale": 2.0})
