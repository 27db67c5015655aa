"""What does not fit is said all at once, before anything of the live run changes."""

from typing import Any

import pytest

from services.checkpoints.errors import Incompatible, LayoutChanged
from services.checkpoints.fit import FRESH, Target, check_fit
from services.checkpoints.layout import Run
from services.checkpoints.reading import load

WORLD = ("0", "1", "2")


def target(name: str, shape: tuple[int, ...], dtype: str = "float64") -> Target:
    """A place for a whole item."""
    return Target(name=name, dtype=dtype, global_shape=shape, box=tuple((0, length) for length in shape))


ALL = [target("w", (7, 2)), target("m.w", (7, 2))]


def fits(run: Run, targets: list[Target], **changes: Any) -> tuple[str, ...]:
    """Against checkpoint 4."""
    known: dict[str, Any] = {"contributor": "0", "world": WORLD, **changes}
    return check_fit(load(run, 4), targets, **known)


def test_what_fits_is_read(run: Run) -> None:
    """Roles outside of the profile ask for no place."""
    assert fits(run, ALL, config={"schedule": 1000}, budget_bytes=224) == ("w", "m.w")


def test_all_differences_stand_in_one_error(run: Run) -> None:
    """C43, C44: shape, dtype, extra and missing; nothing is broadcast, converted or left out."""
    with pytest.raises(Incompatible) as caught:
        fits(run, [target("w", (1, 2), "bfloat16"), target("v.w", (7, 2))], config={"schedule": 2000}, budget_bytes=10)
    text = str(caught.value)
    for difference in (
        "config.schedule 1000 != 2000",
        "w is float64, here bfloat16",
        "w has shape [7, 2], here [1, 2]",
        "v.w is not in checkpoint 4",
        "m.w is in checkpoint 4 and has no place here",
        "116 bytes are needed, the budget is 10",
    ):
        assert difference in text
    assert len(caught.value.differences) == 6


def test_a_difference_is_accepted_by_its_name_alone(run: Run) -> None:
    """C25: a schedule of another length."""
    fits(run, ALL, config={"schedule": 2000}, overrides=["config.schedule"])
    with pytest.raises(Incompatible, match=r"config\.rate"):
        fits(run, ALL, config={"schedule": 2000, "rate": 0.1}, overrides=["config.schedule"])
    with pytest.raises(Incompatible, match=r"lineage\.stage"):
        fits(run, ALL, lineage={"stage": "sft"})


def test_true_is_not_one(run: Run) -> None:
    """Settings are compared as they are spelled."""
    with pytest.raises(Incompatible):
        fits(run, ALL, config={"schedule": 1000.0})


def test_a_contributors_own_refuses_another_layout(run: Run) -> None:
    """C23: until a policy is named; then it begins anew, and is not read."""
    with pytest.raises(LayoutChanged, match=r"g are each contributor's own"):
        fits(run, [*ALL, target("g", (2,))], world=("0", "1"))
    assert fits(run, [*ALL, target("g", (2,))], world=("0", "1"), layout_policy=FRESH) == ("w", "m.w")


def test_the_weights_profile_compares_weights(run: Run) -> None:
    """The moments ask for no place there."""
    assert fits(run, ALL[:1], profile="weights") == ("w",)


def test_a_setting_that_no_record_holds_is_said(run: Run) -> None:
    """All contributors hear of it, and no checkpoint is taken for damaged."""
    with pytest.raises(Incompatible, match="config has a value that no record holds"):
        fits(run, ALL, config={"schedule": {1, 2}})
