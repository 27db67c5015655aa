"""Keys depend on four inputs and nothing else; fingerprints on what is asked and not on how it is spelled."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.effects import keys
from services.effects.errors import InvalidEffect

DESIGN = (Path(__file__).parents[3] / "docs" / "design.md").read_text(encoding="utf-8")

texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=keys.TEXT_LIMIT)
generations = st.integers(1, keys.LAST_GENERATION)
identities = st.tuples(texts, texts, texts, generations)
lines = st.lists(
    st.fixed_dictionaries({"sku": st.text("ABC-", min_size=1, max_size=5), "quantity": st.integers(1, 10**9)}),
    min_size=1,
    max_size=5,
)


def _table_after(heading: str) -> list[str]:
    section = DESIGN.split("## Keys and fingerprints", 1)[1]
    row = section.split(heading, 1)[1].splitlines()[2]
    return re.findall(r"`([^`]+)`", row)


def test_the_key_in_the_design_document_is_the_one_derived() -> None:
    """The document's first test vector."""
    origin, scope, name, generation, key = _table_after("| origin |")
    assert keys.derive_key(origin, scope, name, int(generation)) == key
    assert key == "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"


def test_the_fingerprint_in_the_design_document_is_the_one_computed() -> None:
    """The document's second test vector."""
    kind, path, request, expected = _table_after("| kind |")
    assert keys.fingerprint(kind, json.loads(path), json.loads(request)) == expected
    assert expected == "5fcfd13691813b7f8316ac2c16ad9645a6a00e0eb11209e7c8d4f3ae5b5bb1f7"


@given(identities)
def test_a_key_is_the_same_whenever_it_is_derived_and_is_safe_in_a_header(identity: tuple[str, str, str, int]) -> None:
    """Two derivations agree, and only characters that a provider accepts occur (E47, E58, E59)."""
    key = keys.derive_key(*identity)
    assert key == keys.derive_key(*identity)
    assert re.fullmatch(r"cf1-[a-z2-7]{32}-g[1-9][0-9]?", key)
    assert key.endswith(f"-g{identity[3]}")


@given(identities, identities)
def test_different_identities_have_different_keys(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int]
) -> None:
    """Equal keys mean equal origin, scope, name and generation."""
    assert (keys.derive_key(*one) == keys.derive_key(*other)) == (one == other)


@given(texts, texts, texts)
def test_the_parts_of_an_identity_are_not_interchangeable(origin: str, scope: str, name: str) -> None:
    """Swapping two different parts, or moving a character over their border, gives another key."""
    key = keys.derive_key(origin, scope, name, 1)
    assert (keys.derive_key(scope, origin, name, 1) == key) == (origin == scope)
    assert (keys.derive_key(origin, name, scope, 1) == key) == (scope == name)
    if len(scope) > 1 and len(name) < keys.TEXT_LIMIT:
        assert keys.derive_key(origin, scope[:-1], scope[-1] + name, 1) != key


@given(identities, st.integers(0, 3), texts, generations)
def test_each_part_of_an_identity_alone_makes_another_key(
    identity: tuple[str, str, str, int], part: int, text: str, generation: int
) -> None:
    """Two deployments, two matters, two effects of one matter, two generations: none is answered for another."""
    values = list(identity)
    other: list[Any] = [*values[:part], generation if part == 3 else text, *values[part + 1 :]]
    assert (keys.derive_key(*identity) == keys.derive_key(*other)) == (values == other)


@pytest.mark.parametrize("bad", ["", "x" * 129, "a\nb", "a\rb", "\x00", "\x7f", "\ud800"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_text_that_cannot_travel_is_refused_before_anything_is_recorded(bad: str, position: int) -> None:
    """Empty, overlong, control characters and lone surrogates."""
    parts = ["demo", "INC-1", "reserve"]
    parts[position] = bad
    origin, scope, name = parts
    with pytest.raises(InvalidEffect, match="Nothing was recorded or sent"):
        keys.derive_key(origin, scope, name, 1)


@pytest.mark.parametrize("bad", [0, 18, -1, True, 1.0, "1"])
def test_only_generations_from_1_to_17_have_keys(bad: Any) -> None:
    """Former generations travel in one header of at most 16 keys."""
    with pytest.raises(InvalidEffect, match="Generation"):
        keys.derive_key("demo", "INC-1", "reserve", bad)


@given(texts, texts, texts, generations)
def test_a_redo_supersedes_every_former_generation_newest_first(
    origin: str, scope: str, name: str, generation: int
) -> None:
    """Generation n names n - 1 keys, never its own."""
    former = keys.former_keys(origin, scope, name, generation)
    assert [int(key.rpartition("-g")[2]) for key in former] == list(range(generation - 1, 0, -1))
    assert {key.rpartition("-g")[0] for key in former} <= {
        keys.derive_key(origin, scope, name, generation).rpartition("-g")[0]
    }


@given(texts, generations)
def test_a_releases_name_says_what_it_gives_back(name: str, generation: int) -> None:
    """Each generation has a release of its own (A06), and the name is read back."""
    assert keys.released_name(keys.release_name(name, generation)) == (name, generation)


def test_a_confirmation_has_a_name_for_whatever_can_be_held() -> None:
    """It takes nothing, so its own name need leave no room for that of a release."""
    longest = "x" * keys.NAME_LIMIT
    name = keys.confirm_name(longest, keys.LAST_GENERATION)
    assert keys.check_name(name, "inventory.confirm") == name
    assert keys.released_name(name) is None
    with pytest.raises(InvalidEffect, match="no room"):
        keys.check_name(name, "inventory.reserve")


def test_an_expirys_key_says_whose_hold_ran_out_and_is_nobodys_to_use() -> None:
    """'@' is in no key that a caller may use."""
    key = keys.derive_key("demo", "INC-1", "hold", 1)
    assert keys.expired_key(f"{key}@expiry") == key
    assert keys.expired_key(key) is None
    assert keys.PROVIDER_KEY.fullmatch(f"{key}@expiry") is None


def test_other_names_give_nothing_back() -> None:
    """A name that only looks like a release."""
    for name in ("reserve", "reserve.release", "reserve.g0.release", ".g1.release", "reserve.g1.release.x"):
        assert keys.released_name(name) is None


@given(lines, st.integers(1, 3600))
def test_the_order_of_members_does_not_change_a_fingerprint(rows: list[dict[str, Any]], hold: int) -> None:
    """A dict built in another order asks for the same."""
    request = {"lines": rows, "hold_seconds": hold}
    turned = {"hold_seconds": hold, "lines": [dict(reversed(row.items())) for row in rows]}
    assert keys.fingerprint("inventory.reserve", {}, request) == keys.fingerprint("inventory.reserve", {}, turned)


@given(lines)
def test_a_member_equal_to_its_default_does_not_change_a_fingerprint(rows: list[dict[str, Any]]) -> None:
    """Said or left out, a default is the same request."""
    spoken = {"lines": rows, "hold_seconds": None, "reference": None}
    assert keys.fingerprint("inventory.reserve", {}, spoken) == keys.fingerprint(
        "inventory.reserve", {}, {"lines": rows}
    )


@given(lines, lines)
def test_the_lines_and_their_order_make_the_fingerprint(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Equal fingerprints mean equal lines in the same order."""
    same = keys.fingerprint("inventory.reserve", {}, {"lines": one}) == keys.fingerprint(
        "inventory.reserve", {}, {"lines": other}
    )
    assert same == (one == other)


def test_path_parameters_make_the_fingerprint() -> None:
    """A release of another reservation is another payload."""
    prints = {keys.fingerprint("inventory.release", {"id": name}, {}) for name in ("reservation-1", "reservation-2")}
    assert len(prints) == 2


def test_kinds_make_the_fingerprint() -> None:
    """The same members asked of two kinds are two payloads."""
    prints = {keys.fingerprint(kind, {"id": "reservation-1"}, {}) for kind in keys.DEFAULTS}
    assert len(prints) == len(keys.DEFAULTS)


def test_a_falsy_value_is_not_a_default() -> None:
    """0, false and the empty text are not null."""
    plain = keys.fingerprint("inventory.reserve", {}, {})
    for value in (0, False, ""):
        assert keys.fingerprint("inventory.reserve", {}, {"hold_seconds": value}) != plain


def test_an_unknown_kind_has_no_fingerprint() -> None:
    """The kinds are named in the message."""
    with pytest.raises(InvalidEffect, match=r"inventory\.confirm, inventory\.deliver"):
        keys.fingerprint("inventory.steal", {}, {})


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**53, {"a": {1}}, {1: 2}, "\ud800", {"\ud800": 1}, b"x", object(), _deep()],
    ids=["nan", "inf", "2**53", "set", "int member", "surrogate", "surrogate member", "bytes", "object", "deep"],
)
def test_what_has_no_canonical_json_is_refused(value: Any) -> None:
    """Nothing is written down that the other side could read differently."""
    with pytest.raises(InvalidEffect, match="canonical JSON"):
        keys.canonical({"value": value})


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text("aé☃\x00"), st.lists))
def test_canonical_json_reads_back_as_what_was_written(value: Any) -> None:
    """The journaled bytes mean what was asked."""
    assert json.loads(keys.canonical(value)) == value


def test_a_reference_is_bounded() -> None:
    """The provider keeps at most 512 bytes."""
    assert keys.reference("INC-1", "reserve", 1) == '{"generation":1,"name":"reserve","scope":"INC-1"}'
    with pytest.raises(InvalidEffect, match="over 512"):
        keys.reference("☃" * 128, "☃" * 128, 1)
