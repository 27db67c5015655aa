"""Strict JSON: what two parsers could read differently is refused, not guessed.

Duplicate members, NaN and Infinity, numbers out of all proportion, unpaired surrogates, anything but UTF-8 and nesting
beyond 32 levels end as `Invalid`, never as an error of the parser.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic

from services.inventory.problems import Fault, Invalid

MAX_DEPTH = 32
# More digits than any quantity has; Python's own limit (4,300) would let a body spend real time on one number.
MAX_DIGITS = 20
# Enough to correct a request by, and an answer no larger than the request was.
_MAX_FAULTS = 20
_MAX_POINTER = 200

# A string that does not end goes to the end of the text: were it no match, the search would begin again at each quote
# in it, and 64 KiB of them would take minutes.
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?(?:"|\Z)|[\[\]{}]', re.DOTALL)

Model = TypeVar("Model", bound=pydantic.BaseModel)


def parse(body: bytes, model: type[Model]) -> Model:
    """Read a request body into its model.

    Raises:
        Invalid: not strict JSON, or not what the model says.
    """
    value = parse_json(body)
    try:
        return model.model_validate(value, strict=True)
    except pydantic.ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise Invalid(
            [Fault(at=_pointer(fault["loc"]), message=fault["msg"]) for fault in faults[:_MAX_FAULTS]]
        ) from None


def parse_json(body: bytes) -> Any:
    """Read strict JSON.

    Raises:
        Invalid: anything that is not.
    """
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_int=_integer,
            parse_float=_number,
        )
        _check_text(text, value)
    except RecursionError:
        raise _not_json("nested too deeply") from None
    except UnicodeDecodeError:
        raise _not_json("not UTF-8") from None
    except json.JSONDecodeError:
        raise _not_json("not a JSON document") from None
    return value


def _not_json(message: str) -> Invalid:
    return Invalid([Fault(at="", message=f"The body is {message}.")])


def _check_depth(text: str) -> None:
    depth = 0
    for match in _MARK.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _not_json(f"nested beyond {MAX_DEPTH} levels")
        elif mark in "]}":
            depth -= 1


def _check_text(text: str, value: Any) -> None:
    if "\\u" not in text:
        return  # valid UTF-8 has no surrogates: only an escape can spell one
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _not_json("not Unicode text: it has an unpaired surrogate") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _not_json("ambiguous: a member is there twice")
    return members


def _no_constant(_name: str) -> Any:
    raise _not_json("not JSON: NaN and Infinity are not numbers")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _not_json(f"not usable: a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > 2 * MAX_DIGITS or float(digits) in {float("inf"), float("-inf")}:
        raise _not_json("not usable: a number is out of range")
    return float(digits)


def _pointer(location: Sequence[int | str]) -> str:
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return "".join(f"/{part}" for part in parts)[:_MAX_POINTER]
