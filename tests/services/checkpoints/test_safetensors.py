"""The format, against its own library: what we write it reads, what it writes we read, and nothing hostile gets in."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from services.checkpoints import fs
from services.checkpoints.dtypes import DTYPES, Array
from services.checkpoints.errors import CheckpointError, ManifestInvalid, SizeMismatch
from services.checkpoints.safetensors import (
    HEADER_BYTES,
    THEIR_NAMES,
    Header,
    chunks,
    header_bytes,
    lay_out,
    parse_header,
    read_header,
    write,
)

ROOT = Path(__file__).parents[3]
NUMPY_HAS = [name for name in THEIR_NAMES if not name.startswith("float8")]
MOST_BYTES = 8 * HEADER_BYTES  # what a reader may take beyond what it has at rest, whatever the file says


def written(folder: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> Path:
    """A file of ours."""
    tensors = lay_out([(name, array.dtype.name, array.shape) for name, array in arrays.items()])
    with fs.open_root(folder) as place:
        assert write(place, "m.safetensors", tensors, lambda each: arrays[each.name], lambda _: metadata or {})
    return folder / "m.safetensors"


def read(path: Path) -> tuple[Header, dict[str, Array]]:
    """A file, by our reader."""
    with fs.open_root(path.parent) as folder, folder.open(path.name) as file:
        header = read_header(file)
        arrays = {
            name: np.frombuffer(b"".join(map(bytes, chunks(file, header, each))), DTYPES[each.dtype]).reshape(
                each.shape
            )
            for name, each in header.tensors.items()
        }
    return header, arrays


def deserialized(data: bytes) -> dict[str, dict[str, Any]]:
    """A file, by the library: dtype, shape and bytes of each tensor."""
    return dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]


def array_of(dtype: str) -> Array:
    """Six different elements."""
    return np.arange(6).reshape(2, 3).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", NUMPY_HAS)
def test_what_we_write_the_library_reads(dtype: str, tmp_path: Path) -> None:
    """Every element, shape and text."""
    arrays = {"a/b": array_of(dtype), "empty": np.zeros((0, 3), DTYPES[dtype]), "one": np.ones((), DTYPES[dtype])}
    found = load_file(written(tmp_path, arrays, {"format": "pt", "said": 'ü "\\'}))
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
    with safetensors.safe_open(tmp_path / "m.safetensors", "np") as opened:
        assert opened.metadata() == {"format": "pt", "said": 'ü "\\'}


@pytest.mark.parametrize("dtype", NUMPY_HAS)
def test_what_the_library_writes_we_read(dtype: str, tmp_path: Path) -> None:
    """Whatever order it gives the tensors."""
    arrays = {"b": array_of(dtype), "a": np.zeros((0, 3), DTYPES[dtype]), "c": np.ones((), DTYPES[dtype])}
    save_file(arrays, tmp_path / "theirs.safetensors", {"format": "np"})
    header, found = read(tmp_path / "theirs.safetensors")
    assert header.metadata == {"format": "np"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_what_numpy_has_no_name_for_is_written_as_the_library_knows_it(dtype: Any, tmp_path: Path) -> None:
    """By its bytes."""
    array = np.arange(6).astype(dtype)
    found = deserialized(written(tmp_path, {"w": array}).read_bytes())["w"]
    assert found["dtype"] == THEIR_NAMES[array.dtype.name]
    assert bytes(found["data"]) == array.tobytes()


def test_a_view_is_stored_as_what_it_shows(tmp_path: Path) -> None:
    """The library's own numpy writer stores the memory behind a transposed array."""
    whole = np.arange(12.0).reshape(3, 4)
    views = {"turned": whole.T, "strided": whole[::2, ::-1], "broadcast": np.broadcast_to(whole[0], (2, 4))}
    found = load_file(written(tmp_path, views))
    for name, view in views.items():
        assert found[name].tolist() == view.tolist()


def test_each_tensor_begins_where_its_elements_are_aligned(tmp_path: Path) -> None:
    """Also behind ones of one byte: a reader maps them without a copy."""
    header, _ = read(written(tmp_path, {"a": np.ones(3, np.int8), "b": np.ones(3), "c": np.ones(5, np.float16)}))
    assert header.data_start % 8 == 0
    for each in header.tensors.values():
        assert each.start % DTYPES[each.dtype].itemsize == 0


def test_what_the_format_has_no_name_for_is_not_written() -> None:
    """complex128: it is refused, and not made smaller."""
    with pytest.raises(ManifestInvalid, match="complex128"):
        lay_out([("w", "complex128", (2,))])
    with pytest.raises(ManifestInvalid, match="one name"):
        lay_out([("w", "bool", (2,)), ("w", "float64", (2,))])
    with pytest.raises(ManifestInvalid, match="longer than"):
        header_bytes([], {"x": "y" * HEADER_BYTES})


def test_a_name_that_is_taken_is_left_as_it_is(tmp_path: Path) -> None:
    """And a write that fails leaves no file, under no name."""
    path = written(tmp_path, {"w": np.ones(3)})
    before = path.read_bytes()
    tensors = lay_out([("w", "float64", (3,))])
    with fs.open_root(tmp_path) as place:
        assert not write(place, path.name, tensors, lambda _: np.zeros(3), lambda _: {})
        with pytest.raises(ManifestInvalid, match="announced"):
            write(place, "other", tensors, lambda _: np.zeros(3, np.float32), lambda _: {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208 - hidden files too


def file_of(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with any header."""
    raw = header.encode() if isinstance(header, str) else header
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def tensor(shape: Sequence[Any] = (2,), at: Sequence[Any] = (0, 8), **changes: Any) -> dict[str, Any]:
    """One tensor as a header has it."""
    return {"dtype": "F32", "shape": list(shape), "data_offsets": list(at), **changes}


def one(name: str = "w", data: int = 8, **changes: Any) -> bytes:
    """A file of one tensor, with something changed."""
    return file_of(json.dumps({name: tensor(**changes)}), bytes(data))


EIGHT = bytes(8)
HOSTILE: list[tuple[str, bytes, type[CheckpointError], str]] = [
    ("empty", b"", SizeMismatch, "cut off"),
    ("seven bytes", bytes(7), SizeMismatch, "cut off"),
    ("no header", bytes(8), ManifestInvalid, "begins with"),
    ("a huge header", file_of("{}", length=2**63), ManifestInvalid, "more than"),
    ("a header beyond the file", file_of("{}", length=3), SizeMismatch, "cut off"),
    ("no UTF-8", file_of(b'{"\xff":1}'), ManifestInvalid, "UTF-8"),
    ("a list", file_of("[]"), ManifestInvalid, "begins with"),
    ("a space before", file_of(" {}"), ManifestInvalid, "begins with"),
    ("something behind", file_of("{} x"), ManifestInvalid, "behind its end"),
    ("a line behind", file_of("{}\n"), ManifestInvalid, "behind its end"),
    ("half", file_of('{"w":'), ManifestInvalid, "expected"),
    ("depth", file_of('{"w":' * 100_000), ManifestInvalid, "does not have"),
    ("depth in a list", file_of('{"w":{"dtype":"F32","shape":' + "[" * 100_000), ManifestInvalid, "integer"),
    ("a tensor that is a text", file_of('{"w":"x"}'), ManifestInvalid, "expected"),
    ("a key twice", file_of('{"w":' + json.dumps(tensor()) + ',"w":' + json.dumps(tensor()) + "}", EIGHT),
     ManifestInvalid, "twice"),
    ("a member twice", file_of('{"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', EIGHT),
     ManifestInvalid, "twice"),
    ("a key twice, spelled otherwise", file_of('{"w":' + json.dumps(tensor()) + ',"\\u0077":'
     + json.dumps(tensor()) + "}", EIGHT), ManifestInvalid, "twice"),
    ("another member", one(strides=[1]), ManifestInvalid, "does not have"),
    ("no shape", file_of('{"w":{"dtype":"F32","data_offsets":[0,8]}}', EIGHT), ManifestInvalid, "has not"),
    ("one offset", one(at=[0]), ManifestInvalid, "has not"),
    ("three offsets", one(at=[0, 4, 8]), ManifestInvalid, "more than"),
    ("an object", one(dtype="O"), ManifestInvalid, "dtype"),
    ("a structure", one(dtype="V8"), ManifestInvalid, "dtype"),
    ("a dtype that is a number", one(dtype=4), ManifestInvalid, "text"),
    ("a dtype that we have not", one(dtype="F8_E8M0", shape=[8]), ManifestInvalid, "dtype"),
    ("a fraction", one(shape=[2.0]), ManifestInvalid, "integer"),
    ("an exponent", file_of('{"w":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}', EIGHT), ManifestInvalid,
     "integer"),
    ("NaN", one(shape=[math.nan]), ManifestInvalid, "integer"),
    ("true", one(shape=[True]), ManifestInvalid, "integer"),
    ("negative", one(shape=[-2]), ManifestInvalid, "integer"),
    ("a leading zero", file_of('{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', EIGHT), ManifestInvalid,
     "integer"),
    ("a huge integer", one(shape=[10**30]), ManifestInvalid, "integer"),
    ("33 dimensions", one(shape=[1] * 33), ManifestInvalid, "more than"),
    ("a product that wraps", one(shape=[2**32, 2**32]), ManifestInvalid, "larger than any file"),
    ("an empty one of a huge length", one(shape=[0, 2**62, 2**62], at=[0, 0]), ManifestInvalid, "larger than any"),
    ("fewer bytes than its shape", one(shape=[3]), ManifestInvalid, "are not the 12"),
    ("backwards", one(at=[8, 0]), ManifestInvalid, "are not the 8"),
    ("a bomb", one(shape=[2**40], at=[0, 2**42]), SizeMismatch, "cut off"),
    ("the data is short", one(data=7), SizeMismatch, "cut off"),
    ("bytes of nobody", one(data=9), SizeMismatch, "belongs to no tensor"),
    ("a gap in front", one(at=[4, 12], data=12), ManifestInvalid, "gap"),
    ("a gap", file_of(json.dumps({"a": tensor(), "b": tensor(at=(12, 20))}), bytes(20)), ManifestInvalid, "gap"),
    ("an overlap", file_of(json.dumps({"a": tensor(), "b": tensor(at=(4, 12))}), bytes(12)), ManifestInvalid,
     "overlaps"),
    ("two of the same bytes", file_of(json.dumps({"a": tensor(), "b": tensor()}), EIGHT), ManifestInvalid, "overlaps"),
    ("up", one("../../etc/passwd"), ManifestInvalid, "path"),
    ("up inside", one("a/../b"), ManifestInvalid, "path"),
    ("absolute", one("/etc/passwd"), ManifestInvalid, "path"),
    ("a folder", one("a//b"), ManifestInvalid, "path"),
    ("dots", one(".."), ManifestInvalid, "path"),
    ("backslashes", one("..\\..\\x"), ManifestInvalid, "path"),
    ("a zero byte", one("a\0b"), ManifestInvalid, "printable"),
    ("a line", one("a\nb"), ManifestInvalid, "printable"),
    ("no name", one(""), ManifestInvalid, "printable"),
    ("a long name", one("w" * 257), ManifestInvalid, "printable"),
    ("half a pair", one("\ud800"), ManifestInvalid, "surrogate"),
    ("metadata that is no text", file_of('{"__metadata__":{"a":1}}'), ManifestInvalid, "text"),
    ("metadata in metadata", file_of('{"__metadata__":{"a":{"b":"c"}}}'), ManifestInvalid, "text"),
    ("metadata twice", file_of('{"__metadata__":{},"__metadata__":{}}'), ManifestInvalid, "twice"),
    ("an escape that is none", file_of('{"\\x41":{}}'), ManifestInvalid, "text"),
    ("a journal export", b'{"record": "journal", "format": 1, "journal_id": "0"}\n{}', ManifestInvalid, "format 1 and"),
    ("a KV cache's index", b'{"format": "kv-cache", "layers": 32}', ManifestInvalid, "'kv-cache'"),
    ("a pickle", b"\x80\x04\x95" + bytes(100), SizeMismatch, "cut off"),
    ("a zip archive", b"PK\x03\x04" + b"\x14" * 100, ManifestInvalid, "no safetensors"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error", "words"), [each[1:] for each in HOSTILE], ids=[each[0] for each in HOSTILE])
def test_a_hostile_file_is_refused_by_name(
    data: bytes, error: type[CheckpointError], words: str, tmp_path: Path
) -> None:
    """C47, D11: before anything is allocated by what it says, and in words that a person reads."""
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(error, match=words) as told:
        read(tmp_path / "f")
    assert len(str(told.value)) < 500 + len(str(tmp_path))


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """C47: a fifo would be waited for, and a link leads elsewhere."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(written(tmp_path, {"w": np.ones(3)}))
    for name in ("fifo", "link", "."):
        with pytest.raises(ManifestInvalid):
            read(tmp_path / name)


GOOD = file_of(
    json.dumps({"__metadata__": {"format": "pt"}, "a": tensor(), "b": tensor((2, 3), (8, 14), dtype="I8")}), bytes(14)
)
PIECES = st.sampled_from(
    [b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"0", b"-1", b"1e9", b"\\u0000", b"null", b" "]
)
CHANGES = st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 4), st.one_of(PIECES, st.binary(max_size=4))))


def outcome(data: bytes) -> Header | None:
    """What the reader makes of a file: a header, or an error that has a name."""
    if len(data) < 8 or int.from_bytes(data[:8], "little") > len(data) - 8:
        return None  # of the file's size, which the table above tests
    length = int.from_bytes(data[:8], "little")
    try:
        tensors, metadata = parse_header(data[8 : 8 + length], len(data) - 8 - length)
    except CheckpointError:
        return None
    return Header(tensors=tensors, metadata=metadata, data_start=8 + length)


def check(data: bytes) -> None:
    """What is accepted fills the file, and the library accepts it too."""
    header = outcome(data)
    if header is None:
        return
    assert sum(each.stop - each.start for each in header.tensors.values()) == len(data) - header.data_start
    theirs = deserialized(data)
    assert theirs.keys() == header.tensors.keys()
    for name, each in header.tensors.items():
        assert (THEIR_NAMES[each.dtype], list(each.shape)) == (theirs[name]["dtype"], theirs[name]["shape"])
        assert bytes(theirs[name]["data"]) == data[header.data_start + each.start : header.data_start + each.stop]


@settings(max_examples=500)
@given(CHANGES)
def test_a_file_that_was_changed_anywhere_is_read_as_the_library_reads_it_or_refused(
    changes: list[tuple[int, int, bytes]],
) -> None:
    """No error without a name, and nothing that two readers would read differently."""
    data = bytearray(GOOD)
    for at, removed, added in changes:
        data[at : at + removed] = added
    check(bytes(data))
    body = bytes(data[8:])
    header, _, rest = body.partition(b"}}")  # and with a length that fits what came of it
    check(file_of(header + b"}}", rest))


LEAVES = st.one_of(
    st.integers(-2, 9), st.text(max_size=3), st.none(), st.floats(), st.sampled_from(["F32", "I8", "U8"])
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=6)
TENSORS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I8", "BOOL", "O"]) | JSON,
        "shape": st.lists(st.integers(0, 3), max_size=3) | JSON,
        "data_offsets": st.tuples(st.integers(0, 12), st.integers(0, 12)) | JSON,
    }
)


@settings(max_examples=250)
@given(st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), TENSORS | JSON, max_size=3), st.integers(0, 16))
def test_any_header_is_read_as_the_library_reads_it_or_refused(raw: dict[str, Any], data: int) -> None:
    """Drawn from what a header looks like."""
    check(file_of(json.dumps(raw), bytes(data)))


PROGRAM = """
import resource, sys
from pathlib import Path
from services.checkpoints import fs
from services.checkpoints.errors import CheckpointError
from services.checkpoints.safetensors import read_header
path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with fs.open_root(path.parent) as folder, folder.open(path.name) as file:
    try:
        print("read", len(read_header(file).tensors))
    except CheckpointError as error:
        print(type(error).__name__)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
SMALLEST: Callable[[int], str] = lambda number: f'"{number:x}":{{"dtype":"U8","shape":[],"data_offsets":[0,1]}},'  # noqa: E731
QUARTER = HEADER_BYTES // 4  # so many small tensors take seconds, and each as much memory as the one before
LARGE: dict[str, Callable[[], str]] = {
    "lists": lambda: '{"w":{"dtype":"U8","shape":' + "[" * HEADER_BYTES,
    "objects": lambda: '{"w":' * (HEADER_BYTES // 5),
    "one text": lambda: '{"' + "\\u0041" * (HEADER_BYTES // 6) + '":{}}',
    "a text without an end": lambda: '{"' + "\\n" * (HEADER_BYTES // 2),
    "spaces": lambda: "{" + " " * (HEADER_BYTES - 1),
    "wide letters": lambda: '{"__metadata__":{"a":"😀' + "x" * (HEADER_BYTES - 40) + '"}}',
    "tensors": lambda: "{" + "".join(map(SMALLEST, range(QUARTER // 56)))[:-1] + "}",
}


@pytest.mark.linux
@pytest.mark.parametrize("kind", LARGE)
def test_no_header_makes_its_reader_take_more_memory_than_a_few_times_its_bound(kind: str, tmp_path: Path) -> None:
    """A general JSON parser takes twenty times as much for lists of nothing."""
    text = LARGE[kind]().encode()[:HEADER_BYTES]
    (tmp_path / "f").write_bytes(file_of(text, b"\0"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "f")], cwd=ROOT, capture_output=True, text=True, timeout=100,
        check=True,
    )  # fmt: skip
    said, taken = done.stdout.split("\n")[:2]
    assert said in {"ManifestInvalid", "SizeMismatch"}
    assert int(taken) * 1024 < (MOST_BYTES // 4 if kind == "tensors" else MOST_BYTES)


@pytest.mark.linux
def test_what_a_header_says_allocates_nothing(tmp_path: Path) -> None:
    """A bomb: a terabyte that is a hole in the file, and a header that claims to be as long."""
    bomb = tmp_path / "bomb"
    bomb.write_bytes(file_of(json.dumps({"w": tensor((2**38,), (0, 2**40))})))
    os.truncate(bomb, bomb.stat().st_size + 2**40)
    claim = tmp_path / "claim"
    claim.write_bytes((2**40).to_bytes(8, "little"))
    os.truncate(claim, 2**41)
    for path, said in ((bomb, "read 1"), (claim, "ManifestInvalid")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.split("\n")[0] == said
        assert int(done.stdout.split("\n")[1]) < 8192
