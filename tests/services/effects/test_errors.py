"""Every error belongs to one of the two families that cross into workflows."""

import inspect

import pytest

from services.effects import errors

ALL = [
    member
    for _, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, errors.EffectError) and member.__module__ == errors.__name__
]
FAMILIES = (errors.EffectError, errors.Retryable, errors.Terminal)


@pytest.mark.parametrize("error", [error for error in ALL if error not in FAMILIES])
def test_an_error_is_either_retryable_or_terminal(error: type[errors.EffectError]) -> None:
    """Never both, never neither."""
    assert issubclass(error, errors.Retryable) != issubclass(error, errors.Terminal)


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    """Each error stands in the module's docstring under its own family."""
    assert errors.__doc__ is not None
    _, retryable = errors.__doc__.split("|- Retryable", 1)
    retryable, terminal = retryable.split("`- Terminal", 1)
    for error in ALL:
        if error not in FAMILIES:
            tree = retryable if issubclass(error, errors.Retryable) else terminal
            assert f"- {error.__name__} " in tree


def test_a_pause_is_kept_with_its_error() -> None:
    """What the provider asked for reaches the retry."""
    assert errors.HeldBack("later", retry_after_seconds=3.0).retry_after_seconds == 3.0
    assert errors.HeldBack("later").retry_after_seconds is None


def test_an_invalid_effect_is_a_value_error_too() -> None:
    """Whoever parses input catches it as one."""
    assert issubclass(errors.InvalidEffect, ValueError)
