"""Small state of other programs' objects as a checkpoint's values: what comes back is what went in, types too.

JSON has no tuples and no keys but texts, and an optimizer has both: `betas` is a tuple, a scheduler's milestones are a
Counter of integers. An object with one member that begins with "!" is such a value; anything that could be taken for
one is written as one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ManifestInvalid


def _no_other(value: Any, where: str) -> Any:
    raise ManifestInvalid(
        f"{where} is a {type(value).__name__}, which has no place in a checkpoint. Nothing was published: keep it in "
        "the program's own settings, or as an item of its own."
    )


def tagged(value: Any, where: str, *, other: Callable[[Any, str], Any] = _no_other) -> Any:
    """A value in a record's types.

    Args:
        value: None, a truth value, a number, a text, and lists, tuples, dicts and Counters of them.
        where: its name, for the error.
        other: what to do with anything else; it gives what `untagged` hands back to its own `other`.

    Raises:
        ManifestInvalid: something else is in it, and where.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case list():
            return [tagged(each, f"{where}[{at}]", other=other) for at, each in enumerate(value)]
        case tuple():
            return {"!tuple": [tagged(each, f"{where}[{at}]", other=other) for at, each in enumerate(value)]}
        case Mapping() if type(value) in {dict, Counter}:
            pairs = [(tagged(key, where, other=other), tagged(each, f"{where}.{key}", other=other))
                     for key, each in value.items()]  # fmt: skip
            if type(value) is dict and all(isinstance(key, str) and key[:1] not in {"!", "$"} for key in value):
                return dict(pairs)
            return {"!dict" if type(value) is dict else "!counter": [list(pair) for pair in pairs]}
        case _:
            return {"!other": other(value, where)}


def untagged(value: Any, *, other: Callable[[Any], Any] | None = None) -> Any:
    """The value that was tagged.

    Raises:
        ManifestInvalid: a tag that nobody wrote.
    """
    match value:
        case list():
            return [untagged(each, other=other) for each in value]
        case dict() if len(value) == 1 and next(iter(value)).startswith("!"):
            ((tag, content),) = value.items()
            return _of_tag(tag, content, other)
        case dict():
            return {key: untagged(each, other=other) for key, each in value.items()}
        case _:
            return value


def _of_tag(tag: str, content: Any, other: Callable[[Any], Any] | None) -> Any:
    try:
        if tag == "!tuple" and isinstance(content, list):
            return tuple(untagged(each, other=other) for each in content)
        if tag in {"!dict", "!counter"}:
            pairs = {untagged(key, other=other): untagged(each, other=other) for key, each in content}
            return pairs if tag == "!dict" else Counter(pairs)
        if tag == "!other" and other is not None:
            return other(content)
    except (TypeError, ValueError, KeyError) as error:
        raise ManifestInvalid(f"a value with {tag!r} that is none: {error}; nothing was changed") from error
    raise ManifestInvalid(f"a value has the tag {tag!r}, which is none of ours; nothing was changed")
