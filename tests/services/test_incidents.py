"""Incidents: good lines are read, bad ones are said, whatever the bytes."""

import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from services.incidents import MAX_LINE_BYTES, Approval, Incident, Problem, read_incidents, schema_text

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _document(**changes: Any) -> dict[str, Any]:
    document = {
        "id": "INC-1",
        "title": "Fan stalls",
        "site": "FRA2/B/R04",
        "severity": "high",
        "reported_at": "2026-11-30T08:15:00Z",
        "approval": "auto",
        "effects": [{"name": "reserve-fans", "lines": [{"sku": "FAN-80MM", "quantity": 2}]}],
    }
    return {name: value for name, value in (document | changes).items() if value is not ...}


def _effect(name: str = "reserve-fans", **line: Any) -> dict[str, Any]:
    return {"name": name, "lines": [{"sku": "FAN-80MM", "quantity": 2} | line]}


def _read(*lines: bytes | dict[str, Any]) -> tuple[list[Incident], list[Problem]]:
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return read_incidents(io.BytesIO(b"\n".join(raw)))


def test_a_good_line_becomes_a_typed_incident() -> None:
    """Times are aware and in UTC, words are enums, lists are tuples."""
    (incident,), problems = _read(_document(reported_at="2026-11-30T09:15:00+01:00", description="Since noon.\nLoud."))
    assert problems == []
    assert incident.approval is Approval.AUTO
    assert incident.document() == _document(description="Since noon.\nLoud.")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"colour": "red"}, "colour", "unknown field"),
        ({"we ird\n": 1}, '"we ird\\n"', "unknown field"),
        ({"site": ...}, "site", "is missing"),
        ({"severity": "urgent"}, "severity", "one of critical, high, medium, low"),
        ({"title": ""}, "title", "at least 1 characters"),
        ({"title": "a\u001b[31m"}, "title", "without control characters"),
        ({"title": 7}, "title", "must be text, not 7"),
        ({"id": "-x"}, "id", "beginning with a letter or digit"),
        ({"id": "INC-1\n"}, "id", "1-100 of"),
        ({"reported_at": "2026-02-30T08:00:00Z"}, "reported_at", "a time with an offset"),
        ({"reported_at": "0001-01-01T00:00:00+23:00"}, "reported_at", "a time with an offset"),
        ({"reported_at": "2026-11-30T08:00:00"}, "reported_at", "a time with an offset"),
        ({"effects": []}, "effects", "at least 1 entries"),
        ({"effects": {}}, "effects", "must be a list"),
        ({"effects": [_effect(quantity=-2)]}, "effects[0].lines[0].quantity", "at least 1, not -2"),
        ({"effects": [_effect(quantity=10**9 + 1)]}, "effects[0].lines[0].quantity", "at most 1000000000"),
        ({"effects": [_effect(quantity=2.0)]}, "effects[0].lines[0].quantity", "a whole number, not 2.0"),
        ({"effects": [_effect(quantity=True)]}, "effects[0].lines[0].quantity", "a whole number, not true"),
        ({"effects": [_effect(quantity="2")]}, "effects[0].lines[0].quantity", 'a whole number, not "2"'),
        ({"effects": [_effect(sku="fan")]}, "effects[0].lines[0].sku", "1-64 of A-Z"),
        ({"effects": [_effect(sku="FAN\n")]}, "effects[0].lines[0].sku", "1-64 of A-Z"),
        ({"effects": [_effect(rack=1)]}, "effects[0].lines[0].rack", "unknown field"),
        ({"effects": [{"name": "a", "lines": _effect()["lines"] * 101}]}, "effects[0].lines", "at most 100 entries"),
        ({"effects": [_effect("Reserve")]}, "effects[0].name", "1-64 of a-z"),
        ({"effects": [_effect("reserve.release")]}, "effects[0].name", "must not end in .release"),
        ({"effects": [_effect("reserve.g2.release")]}, "effects[0].name", "must not end in .release"),
        ({"effects": [_effect("approval")]}, "effects[0].name", "nor be approval"),
        ({"effects": [_effect("approval.second")]}, "effects[0].name", "nor be approval"),
        ({"approval": "required", "approvers": 3}, "approvers", "at most 2, not 3"),
        ({"approval": "required", "approvers": 0}, "approvers", "at least 1, not 0"),
        ({"approval": "required", "approvers": True}, "approvers", "a whole number, not true"),
        ({"approval": "required", "approval_within_seconds": 0}, "approval_within_seconds", "at least 1, not 0"),
        ({"approvers": 2}, "approvers", "only where approval is required"),
        ({"approval_within_seconds": 60}, "approval_within_seconds", "only where approval is required"),
        ({"effects": [_effect(), _effect("b"), _effect()]}, "effects[2].name", "already the name of effects[0]"),
    ],
)
def test_a_bad_field_is_named_with_its_line_and_the_others_are_read(
    changes: dict[str, Any], field: str, words: str
) -> None:
    """One problem, at the field's path, in words; the next line is read."""
    incidents, problems = _read(_document(**changes), _document(id="INC-2"))
    assert [incident.id for incident in incidents] == ["INC-2"]
    (problem,) = problems
    assert (problem.line, problem.field) == (1, field)
    assert words in problem.message
    assert str(problem).startswith(f"line 1: {field}: ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"id": ', "not JSON: Expecting value at column 8"),
        (b'{"id": "a", "id": "b"}', 'member "id" is given twice'),
        (b'{"id": NaN}', "NaN is not JSON"),
        (b'{"id": -Infinity}', "-Infinity is not JSON"),
        (b'{"id": "\xff"}', "not UTF-8 (byte 9)"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"title": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested too deep"),
        (b" " * MAX_LINE_BYTES + b" {}", "longer than"),
        (b"[]", "must be one JSON object"),
    ],
)
def test_a_line_that_is_not_json_is_said_and_the_others_are_read(line: bytes, words: str) -> None:
    """The line, why, and where in it; the lines around it are read."""
    incidents, problems = _read(_document(), line, _document(id="INC-2"))
    assert [incident.id for incident in incidents] == ["INC-1", "INC-2"]
    (problem,) = problems
    assert (problem.line, problem.field) == (2, "")
    assert words in problem.message


def test_a_number_that_python_refuses_to_read_is_a_problem() -> None:
    """5,000 digits are out of range, not an exception."""
    line = json.dumps(_document()).encode().replace(b'"quantity": 2', b'"quantity": ' + b"9" * 5000)
    incidents, (problem,) = _read(line)
    assert incidents == []
    assert "at most" in problem.message


def test_every_problem_of_a_line_is_said_at_once() -> None:
    """Nobody mends a file one run at a time."""
    _, problems = _read(_document(site=..., severity=3, effects=[_effect(quantity=0)]))
    assert sorted(problem.field for problem in problems) == ["effects[0].lines[0].quantity", "severity", "site"]


def test_the_second_line_with_an_id_is_refused_and_both_are_named() -> None:
    """The first one counts."""
    (incident,), (problem,) = _read(_document(), b"", _document(title="Other"))
    assert incident.title == "Fan stalls"
    assert (problem.line, problem.field) == (3, "id")
    assert "line 1" in problem.message


def test_a_bad_line_does_not_take_its_id() -> None:
    """A mended copy further down is read."""
    (incident,), (problem,) = _read(_document(severity="?"), _document())
    assert (incident.id, problem.line) == ("INC-1", 1)


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t\n"])
def test_a_file_without_an_incident_is_a_problem(content: bytes) -> None:
    """Nothing to do is said, never passed over."""
    incidents, (problem,) = read_incidents(io.BytesIO(content))
    assert incidents == []
    assert "no incident" in problem.message


def test_windows_line_ends_and_blank_lines_are_read_over() -> None:
    """A file from another editor works."""
    incidents, problems = _read(json.dumps(_document()).encode() + b"\r", b"\r", _document(id="INC-2"))
    assert (len(incidents), problems) == (2, [])


def test_the_digest_is_of_the_meaning() -> None:
    """Order of members, spaces and the offset's spelling do not count; a quantity does."""
    turned = dict(reversed(_document(reported_at="2026-11-30T08:15:00.000+00:00").items()))
    (first,), _ = _read(_document())
    (second,), _ = _read(json.dumps(turned, indent=None, separators=(" ,", " : ")).encode())
    (other,), _ = _read(_document(effects=[_effect(quantity=3)]))
    assert first.digest == second.digest
    assert first.digest != other.digest
    assert len(first.digest) == 64


def test_who_approves_and_how_soon_are_part_of_the_meaning() -> None:
    """Two people are another matter than one; one is what there is unless it is said."""
    required = _document(approval="required")
    (plain, one), _ = _read(required, required | {"id": "INC-2", "approvers": 1})
    assert (plain.approvers, plain.approval_within_seconds) == (1, None)
    assert one.document() == required | {"id": "INC-2"}
    strict = required | {"approvers": 2, "approval_within_seconds": 3600}
    (two,), _ = _read(strict)
    assert two.document() == strict
    assert two.digest != plain.digest


@given(st.lists(st.binary(max_size=200).map(lambda raw: raw.replace(b"\n", b"")), max_size=8))
def test_whatever_the_bytes_a_good_line_survives(junk: list[bytes]) -> None:
    """Any bytes: never an exception, each junk line that is not blank is said, the good line is read."""
    incidents, problems = _read(*junk, _document())
    assert [incident.id for incident in incidents] == ["INC-1"]
    assert {problem.line for problem in problems} == {
        number for number, line in enumerate(junk, start=1) if line.strip(b" \t\r\n")
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(st.sampled_from([*_document(), "description"]), JSON)
def test_whatever_the_value_of_a_field_it_is_an_incident_or_a_problem(field: str, value: Any) -> None:
    """Never an exception, and what is read has a digest."""
    incidents, problems = _read(_document(**{field: value}))
    assert bool(incidents) != bool(problems)
    assert all(len(incident.digest) == 64 for incident in incidents)
    assert all(problem.field.startswith(field) or not problem.field for problem in problems)


def test_the_schema_is_valid_and_closed_everywhere() -> None:
    """Draft 2020-12, one file for the package and the examples, no object takes an unknown field."""
    schema = json.loads(schema_text())
    Draft202012Validator.check_schema(schema)
    assert (EXAMPLES / "incident.schema.json").read_text(encoding="utf-8") == schema_text()
    objects = [schema, *schema["$defs"].values()]
    assert all(each["additionalProperties"] is False for each in objects if each["type"] == "object")


def _examples() -> tuple[list[Incident], dict[str, int]]:
    with (EXAMPLES / "incidents.jsonl").open("rb") as stream:
        incidents, problems = read_incidents(stream)
    assert problems == []
    return incidents, json.loads((EXAMPLES / "stock.json").read_text(encoding="utf-8"))


def test_the_example_of_the_story_is_there() -> None:
    """INC-2041 asks for two FILTER-A after an approval, and nobody else touches FILTER-A."""
    incidents, stock = _examples()
    assert len(incidents) >= 60
    (story,) = [each for each in incidents if any(line.sku == "FILTER-A" for e in each.effects for line in e.lines)]
    assert (story.id, story.approval) == ("INC-2041", Approval.REQUIRED)
    assert [(effect.name, [(line.sku, line.quantity) for line in effect.lines]) for effect in story.effects] == [
        ("reserve-filter", [("FILTER-A", 2)])
    ]
    assert stock["FILTER-A"] == 10


def test_the_example_stock_serves_every_incident_but_the_impossible_ones_in_any_order() -> None:
    """An effect either asks for more than was ever delivered, or all that can be served fit together."""
    incidents, stock = _examples()
    effects = [effect for incident in incidents for effect in incident.effects]
    impossible = [e for e in effects if any(line.quantity > stock.get(line.sku, 0) for line in e.lines)]
    needed: Counter[str] = Counter()
    for line in itertools.chain.from_iterable(effect.lines for effect in effects if effect not in impossible):
        needed[line.sku] += line.quantity
    assert all(stock[sku] >= quantity for sku, quantity in needed.items())
    assert len(impossible) == 4
    assert any(line.sku not in stock for effect in impossible for line in effect.lines)
    assert set(stock) == set(needed)
