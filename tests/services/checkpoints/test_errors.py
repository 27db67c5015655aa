"""The errors' tree in words is the tree in code."""

import inspect

from services.checkpoints import errors

ALL = {name: each for name, each in vars(errors).items() if inspect.isclass(each)}


def test_every_error_stands_in_the_tree_under_its_base() -> None:
    """Whoever reads the module's beginning knows what one clause catches."""
    assert errors.__doc__ is not None
    stack: list[str] = []
    seen = {}
    for line in errors.__doc__.splitlines()[2:]:
        name = line.lstrip("|` -").split(" ")[0]
        depth = (len(line) - len(line.lstrip("|` -"))) // 3
        stack[depth:] = [name]
        seen[name] = stack[depth - 1] if depth else "Exception"
    assert seen == {name: each.__base__.__name__ for name, each in ALL.items() if each.__base__ is not None}


def test_every_error_says_when_it_is_raised() -> None:
    """In a sentence of its own."""
    for each in ALL.values():
        assert each.__doc__ is not None
        assert each.__doc__.strip().endswith(".")


def test_an_incompatibility_keeps_every_difference() -> None:
    """For a program that shows them one by one."""
    assert errors.LayoutChanged("x", differences=("a", "b")).differences == ("a", "b")
    assert errors.Incompatible("x").differences == ()
