"""The relations of a contract, in a grammar small enough to be read whole, and never `eval`.

    relation   := comparison [ "implies" relation ]
    comparison := sum ( "==" | "!=" | "<=" | ">=" | "<" | ">" ) sum | "(" relation ")"
    sum        := product { ("+" | "-") product }
    product    := factor { "*" factor }
    factor     := integer | name | "sum" "(" name ")" | "(" sum ")"

A bare name is a number of the whole cut; `sum(name)` adds what the contributors state. A text is at most 4 KiB and its
parentheses and implications nest at most 16 deep, so that evaluating one is bounded by its length.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from .errors import InvariantViolation, ManifestInvalid

TEXT_BYTES: Final = 4096
DEPTH: Final = 16
INTEGER_DIGITS: Final = 19
SHOWN_BITS: Final = 256

Names = Mapping[str, int | Mapping[str, int]]

_TOKEN: Final = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<name>[a-z_][a-z0-9_]*)|(?P<sign>==|!=|<=|>=|[-+*<>()]))")
_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_OPPOSITE: Final = {"==": "!=", "!=": "==", "<=": ">", ">=": "<", "<": ">=", ">": "<="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An integer."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A version or a constant; with `summed`, over all contributors."""

    name: str
    summed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Signed products of factors."""

    terms: tuple[tuple[int, tuple["Factor", ...]], ...]


Factor = Number | Name | Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sums and how they must relate."""

    left: Sum
    sign: str
    right: Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Implication:
    """If the first is true, so must the second be."""

    premise: "Relation"
    conclusion: "Relation"


Relation = Comparison | Implication


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed relation.

    Attributes:
        text: as it was written.
        relation: what it says.
    """

    text: str
    relation: Relation

    def value(self, names: Names) -> bool:
        """Whether it is true.

        Raises:
            InvariantViolation: a name has no value in this cut.
        """
        return _holds(self.relation, names)

    def names(self) -> frozenset[Name]:
        """Every name it uses."""
        return frozenset(_names(self.relation))

    def why_false(self, names: Names) -> str:
        """Both numbers of the comparison that fails, such as `scheduler 5 != updates 4`."""
        relation = self.relation
        while isinstance(relation, Implication):
            relation = relation.conclusion
        left, right = _number(relation.left, names), _number(relation.right, names)
        return f"{_labelled(relation.left, left)} {_OPPOSITE[relation.sign]} {_labelled(relation.right, right)}"


def parse(text: object) -> Expression:
    """A relation from its text.

    Raises:
        ManifestInvalid: it is not one; the message shows where.
    """
    if not isinstance(text, str) or len(text.encode(errors="replace")) > TEXT_BYTES:
        raise ManifestInvalid(f"a relation is a text of at most {TEXT_BYTES} bytes")
    reader = _Reader(text)
    relation = reader.relation(0)
    if not isinstance(relation, Comparison | Implication):
        raise reader.wrong("a comparison")
    if reader.token:
        raise reader.wrong("the end")
    return Expression(text=text, relation=relation)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.token = ""
        self._advance()

    def _advance(self) -> None:
        rest = self._text[self._at :]
        if not rest.strip():
            self.token = ""
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise ManifestInvalid(f"relation {self._text[:80]!r}: {rest.strip()[:20]!r} is not part of the grammar")
        self._at = found.end()
        self.token = found[found.lastgroup or 0]

    def wrong(self, expected: str) -> ManifestInvalid:
        found = repr(self.token) if self.token else "the end"
        return ManifestInvalid(f"relation {self._text[:80]!r}: {expected} was expected, {found} stands there")

    def _take(self, token: str) -> None:
        if self.token != token:
            raise self.wrong(repr(token))
        self._advance()

    def relation(self, depth: int) -> Relation | Sum:
        if depth > DEPTH:
            raise ManifestInvalid(f"relation {self._text[:80]!r} nests more than {DEPTH} deep")
        premise = self._comparison(depth)
        if self.token != "implies":  # noqa: S105 - a token of the grammar
            return premise
        if isinstance(premise, Sum):
            raise self.wrong("a comparison before")
        self._advance()
        conclusion = self.relation(depth + 1)
        if isinstance(conclusion, Sum):
            raise self.wrong("a comparison")
        return Implication(premise=premise, conclusion=conclusion)

    def _comparison(self, depth: int) -> Relation | Sum:
        left = self._sum(depth)
        if not isinstance(left, Sum) or self.token not in _COMPARISONS:
            return left
        sign = self.token
        self._advance()
        right = self._sum(depth)
        if not isinstance(right, Sum):
            raise self.wrong("a number")
        return Comparison(left=left, sign=sign, right=right)

    def _sum(self, depth: int) -> Relation | Sum:
        weight = 1
        terms: list[tuple[int, tuple[Factor, ...]]] = []
        while True:
            factors = [self._factor(depth)]
            while self.token == "*":  # noqa: S105
                self._advance()
                factors.append(self._factor(depth))
            if len(factors) == 1 and not terms and self.token not in {"+", "-"}:
                only = factors[0]
                return only if isinstance(only, Comparison | Implication | Sum) else _sum_of(only)
            numbers = tuple(each for each in factors if not isinstance(each, Comparison | Implication))
            if len(numbers) != len(factors):
                raise ManifestInvalid(f"relation {self._text[:80]!r} calculates with a comparison")
            terms.append((weight, numbers))
            if self.token not in {"+", "-"}:
                return Sum(terms=tuple(terms))
            weight = 1 if self.token == "+" else -1  # noqa: S105
            self._advance()

    def _factor(self, depth: int) -> Factor | Relation:
        token = self.token
        if token.isdecimal():
            if len(token) > INTEGER_DIGITS:
                raise ManifestInvalid(f"relation {self._text[:80]!r}: a number has more than {INTEGER_DIGITS} digits")
            self._advance()
            return Number(value=int(token))
        if token == "(":  # noqa: S105
            self._advance()
            inner = self.relation(depth + 1)
            self._take(")")
            return inner
        if not token or token == "implies" or not token[0].isidentifier():  # noqa: S105
            raise self.wrong("a name or a number")
        self._advance()
        if token != "sum" or self.token != "(":  # noqa: S105
            return Name(name=token, summed=False)
        self._advance()
        name = self.token
        if not name or not name[0].isidentifier():
            raise self.wrong("a name")
        self._advance()
        self._take(")")
        return Name(name=name, summed=True)


def _sum_of(factor: Factor) -> Sum:
    return Sum(terms=((1, (factor,)),))


def _holds(relation: Relation, names: Names) -> bool:
    if isinstance(relation, Implication):
        return not _holds(relation.premise, names) or _holds(relation.conclusion, names)
    return _COMPARISONS[relation.sign](_number(relation.left, names), _number(relation.right, names))


def _number(factor: Factor, names: Names) -> int:
    match factor:
        case Number():
            return factor.value
        case Name():
            return _named(factor, names)
        case Sum():
            total = 0
            for weight, factors in factor.terms:
                product = weight
                for each in factors:
                    product *= _number(each, names)
                total += product
            return total


def _named(name: Name, names: Names) -> int:
    found = names.get(name.name)
    if name.summed and isinstance(found, Mapping):
        return sum(found.values())
    if not name.summed and isinstance(found, int):
        return found
    kind = "by each contributor" if name.summed else "for the whole cut"
    raise InvariantViolation(f"the contract uses {name.name}, which is not stated {kind}; nothing was published")


def _labelled(side: Sum, value: int) -> str:
    match side.terms:
        case ((1, (Name(name=name, summed=False),)),):
            return f"{name} {_digits(value)}"
        case ((1, (Name(name=name),)),):
            return f"sum({name}) {_digits(value)}"
        case _:
            return _digits(value)


def _digits(value: int) -> str:
    """A product of many factors has more digits than Python writes, and than anybody reads."""
    bits = value.bit_length()
    return str(value) if bits <= SHOWN_BITS else f"{'-' if value < 0 else ''}2**{bits - 1}.."


def _names(relation: Relation | Factor) -> Iterator[Name]:
    match relation:
        case Implication():
            yield from _names(relation.premise)
            yield from _names(relation.conclusion)
        case Comparison():
            yield from _names(relation.left)
            yield from _names(relation.right)
        case Sum():
            for _, factors in relation.terms:
                for each in factors:
                    yield from _names(each)
        case Name():
            yield relation
        case Number():
            return
