"""Names as people claim them."""

import pytest

from services.effects.people import LONGEST_NAME, problem_with_name, same_person


@pytest.mark.parametrize("other", ["ada", "Ada", " ada ", "ADA\t", "\uff41da"])
def test_one_person_is_one_however_the_name_is_written(other: str) -> None:
    """Capitals, spaces and wide letters make nobody a second person."""
    assert same_person("ada", other)


@pytest.mark.parametrize("other", ["bob", "ada l", "", "adà"])
def test_other_names_are_other_people(other: str) -> None:
    """A rule that wants two people is kept against haste, not against a liar."""
    assert not same_person("ada", other)


@pytest.mark.parametrize("by", ["", " \t", "x" * (LONGEST_NAME + 1), "a\nb", "rule: auto", " RULE:x"])
def test_what_is_no_persons_name_is_said(by: str) -> None:
    """Nothing is decided under it."""
    assert problem_with_name(by).startswith("needs ")


@pytest.mark.parametrize("by", ["ada", "Zoë Ruler", "x" * LONGEST_NAME])
def test_a_name_is_a_name(by: str) -> None:
    """Whatever alphabet it is in."""
    assert problem_with_name(by) == ""
