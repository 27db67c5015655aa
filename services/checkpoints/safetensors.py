"""The safetensors format, read and written strictly: 8 bytes of length, a JSON header, and the tensors' bytes.

What this module guarantees:

- A header is parsed by its own small grammar and never by a general parser: no depth, no number but a non-negative
  integer, no key twice, no member that the format does not have. Its length is bounded before a byte of it is read, so
  that no file makes its reader take more memory than a few times `HEADER_BYTES`.
- The tensors lie one behind the other and fill the rest of the file exactly. A gap, an overlap, an end that is missing
  and bytes that belong to nobody are refused by name, before anything is allocated by what a header claims.
- A tensor's name is no path: what writes tensors to files may use it.
- What is written is gathered into C order first: a view that is not contiguous is stored as what it shows.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from . import fs
from .boxes import DIMENSIONS, Shape, check_shape, whole
from .contribution import NAME_LENGTH, check_size, nbytes_of
from .dtypes import Array, dtype_of, name_of
from .errors import ManifestInvalid, SizeMismatch
from .records import digest_of

HEADER_BYTES: Final = 16 << 20  # some 150,000 tensors; who has more writes several files
METADATA: Final = "__metadata__"
FRAMEWORKS: Final = ("pt", "np", "tf", "flax", "jax", "mlx")  # what a file's metadata may call its format
_LENGTH: Final = 8
_SHOWN: Final = 60
_SNIFFED: Final = 64 << 10
_NO_DIGEST: Final = "0" * 64

THEIR_NAMES: Final[Mapping[str, str]] = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "float32": "F32", "float64": "F64", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip
_OUR_NAMES: Final = {theirs: ours for ours, theirs in THEIR_NAMES.items()}

# Possessive, so that a long text takes no memory for ways back.
_TEXT: Final = re.compile(
    r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"',
)
_INTEGER: Final = re.compile(r"(?:0|[1-9][0-9]{0,18})(?![0-9.eE])")
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_FORMAT: Final = re.compile(rb'"format"\s*:\s*("[^"\\]{0,64}"|[0-9]{1,9})')


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        name: unique in its file.
        dtype: a name of dtypes.DTYPES.
        shape: of the array.
        start: where its bytes begin, counted from the header's end.
        stop: where they end.
    """

    name: str
    dtype: str
    shape: Shape
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says it holds.

    Attributes:
        tensors: by name, in the order of their bytes.
        metadata: texts by name.
        data_start: where in the file the tensors' bytes begin.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    data_start: int


def check_name(name: str) -> str:
    """A tensor's name: an item's, and no path out of a folder.

    Raises:
        ManifestInvalid: it is not one.
    """
    if not 0 < len(name) <= NAME_LENGTH or not name.isprintable() or name == METADATA:
        raise ManifestInvalid(f"tensor name {_shown(name)} is not a text of 1 to {NAME_LENGTH} printable characters")
    if "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ManifestInvalid(f"tensor name {_shown(name)} is a path out of its folder: nothing was read by that name")
    return name


def read_header(file: fs.ReadFile) -> Header:
    """A file's header, everything in it checked against the file's length.

    Raises:
        SizeMismatch: the file ends early, or has bytes that belong to no tensor.
        ManifestInvalid: it breaks a rule of the format, or is another store's file.
    """
    if file.size < _LENGTH:
        raise SizeMismatch(f"{file.path} has {file.size} bytes: it is no safetensors file, or was cut off")
    start = bytearray(_LENGTH)
    file.read_into(memoryview(start), 0)
    length = int.from_bytes(start, "little")
    if length > HEADER_BYTES:
        _check_foreign(file)
        raise ManifestInvalid(
            f"{file.path} says that its header has {length} bytes, more than the {HEADER_BYTES} it may have; it is no "
            "safetensors file, or one to be written as several"
        )
    if length > file.size - _LENGTH:
        raise SizeMismatch(f"{file.path} has {file.size} bytes and a header of {length}: it was cut off")
    data = bytearray(length)
    file.read_into(memoryview(data), _LENGTH)
    tensors, metadata = parse_header(data, file.size - _LENGTH - length)
    return Header(tensors=tensors, metadata=metadata, data_start=_LENGTH + length)


def _check_foreign(file: fs.ReadFile) -> None:
    """Another store's JSON is refused by the format that it names."""
    first = bytearray(min(file.size, _SNIFFED))
    file.read_into(memoryview(first), 0)
    if first.lstrip().startswith((b"{", b"[")) and (found := _FORMAT.search(first)) is not None:
        stated = json.loads(found[1].decode(errors="replace"))
        raise ManifestInvalid(
            f"{file.path} has format {stated!r} and is no safetensors file: a file of another store is not read"
        )


def parse_header(data: bytes | bytearray, data_bytes: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, in the order of their bytes, and the metadata.

    Args:
        data: the header.
        data_bytes: how many bytes follow it.

    Raises:
        SizeMismatch: the tensors do not end where the file does.
        ManifestInvalid: anything else that is wrong.
    """
    if len(data) > HEADER_BYTES:
        raise ManifestInvalid(f"a header of {len(data)} bytes is longer than {HEADER_BYTES}")
    try:
        text = _Text(data.decode())
    except UnicodeDecodeError as error:
        raise ManifestInvalid(f"the header is not UTF-8: {error.reason}") from None
    found: list[Tensor] = []
    metadata: dict[str, str] = {}
    for key in text.members():
        if key == METADATA:
            metadata = {name: text.string() for name in text.members()}
        else:
            found.append(_tensor(check_name(key), text))
    text.end()
    found.sort(key=lambda each: (each.start, each.stop))
    end = 0
    for each in found:
        if each.start != end:
            what = "overlaps the one before" if each.start < end else "leaves a gap"
            raise ManifestInvalid(f"tensor {each.name} begins at byte {each.start} and {what}, which ends at {end}")
        end = each.stop
    if end != data_bytes:
        raise SizeMismatch(
            f"the tensors have {end} bytes and the file {data_bytes}: "
            + ("it was cut off" if end > data_bytes else "what follows belongs to no tensor")
        )
    return {each.name: each for each in found}, metadata


def _tensor(name: str, text: "_Text") -> Tensor:
    dtype, shape, offsets = None, None, None
    for member in text.members():
        match member:
            case "dtype":
                dtype = text.string()
            case "shape":
                shape = check_shape(text.integers(DIMENSIONS))
            case "data_offsets":
                offsets = text.integers(2)
            case _:
                raise ManifestInvalid(f"tensor {name} has a member {_shown(member)}, which the format does not have")
    if dtype is None or shape is None or offsets is None or len(offsets) != 2:  # noqa: PLR2004 - a start and a stop
        raise ManifestInvalid(f"tensor {name} has not dtype, shape and two data_offsets")
    if dtype not in _OUR_NAMES:
        raise ManifestInvalid(f"tensor {name}: dtype {_shown(dtype)} is not one of {', '.join(_OUR_NAMES)}")
    ours = _OUR_NAMES[dtype]
    check_size(shape, ours)
    start, stop = offsets
    if stop - start != nbytes_of(whole(shape), ours):
        raise ManifestInvalid(
            f"tensor {name}: bytes {start} to {stop} are not the {nbytes_of(whole(shape), ours)} of {dtype} {shape}"
        )
    return Tensor(name=name, dtype=ours, shape=shape, start=start, stop=stop)


class _Text:
    """A header's text, taken piece by piece."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        if not text.startswith("{"):
            raise ManifestInvalid("a header begins with '{': this is no safetensors file")

    def _take(self, mark: str) -> bool:
        self._space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += 1
        return True

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._wrong(f"where {mark!r} is expected")

    def _wrong(self, what: str) -> ManifestInvalid:
        return ManifestInvalid(
            f"the header has {_shown(self._text[self._at : self._at + _SHOWN])} {what}, at character {self._at}"
        )

    def members(self) -> Iterator[str]:
        """The keys of an object; whoever asks takes each one's value before the next key."""
        self._expect("{")
        seen: set[str] = set()
        if self._take("}"):
            return
        while True:
            key = self.string()
            if key in seen:
                raise ManifestInvalid(f"key {_shown(key)} stands twice in one object: two readers would read two files")
            seen.add(key)
            self._expect(":")
            yield key
            if not self._take(","):
                break
        self._expect("}")

    def string(self) -> str:
        """A text."""
        self._space()
        found = _TEXT.match(self._text, self._at)
        if found is None:
            raise self._wrong("where a text is expected")
        self._at = found.end()
        value: str = json.loads(found[0]) if "\\" in found[0] else found[0][1:-1]
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ManifestInvalid("the header has a text that is no UTF-8: half of a surrogate pair") from None
        return value

    def integers(self, most: int) -> list[int]:
        """A list of so many non-negative integers at most."""
        self._expect("[")
        values: list[int] = []
        if self._take("]"):
            return values
        while len(values) < most:
            self._space()
            found = _INTEGER.match(self._text, self._at)
            if found is None:
                raise self._wrong("where a non-negative integer is expected")
            self._at = found.end()
            values.append(int(found[0]))
            if not self._take(","):
                self._expect("]")
                return values
        raise self._wrong(f"behind {most} numbers, more than there may be")

    def end(self) -> None:
        """Nothing but the padding follows."""
        if self._text[self._at :].strip(" "):
            raise self._wrong("behind its end")


def _shown(text: str) -> str:
    """No longer than a person reads: what a hostile file holds is not passed on."""
    return repr(text[:_SHOWN])


def chunks(file: fs.ReadFile, header: Header, tensor: Tensor) -> Iterator[memoryview]:
    """A tensor's bytes, a piece at a time, each valid until the next is asked for.

    Raises:
        SizeMismatch: the file has become shorter.
    """
    size = tensor.stop - tensor.start
    piece = fs.aligned_bytes(min(fs.CHUNK_BYTES, size))
    for at in range(0, size, fs.CHUNK_BYTES):
        part = piece[: min(fs.CHUNK_BYTES, size - at)].data
        file.read_into(part, header.data_start + tensor.start + at)
        yield part


def lay_out(wanted: Sequence[tuple[str, str, Shape]]) -> tuple[Tensor, ...]:
    """Where tensors of these names, dtypes and shapes lie: the widest elements first, so that each is aligned.

    Raises:
        ManifestInvalid: a name or a dtype that the format does not have, or one name twice.
    """
    tensors: list[Tensor] = []
    at = 0
    for name, dtype, shape in sorted(wanted, key=lambda each: (-dtype_of(each[1]).itemsize, each[0])):
        if dtype not in THEIR_NAMES:
            raise ManifestInvalid(f"{name} is {dtype}, for which safetensors has no name; nothing was written")
        stop = at + nbytes_of(whole(shape), dtype)
        tensors.append(Tensor(name=check_name(name), dtype=dtype, shape=shape, start=at, stop=stop))
        at = stop
    if len({each.name for each in tensors}) != len(tensors):
        raise ManifestInvalid("two tensors have one name; nothing was written")
    return tuple(tensors)


def header_bytes(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    """The length and the header, padded so that the data is aligned.

    Raises:
        ManifestInvalid: it would be longer than any reader of ours takes.
    """
    raw: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for each in tensors:
        raw[each.name] = {
            "dtype": THEIR_NAMES[each.dtype], "shape": list(each.shape), "data_offsets": [each.start, each.stop],
        }  # fmt: skip
    text = json.dumps(raw, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES:
        raise ManifestInvalid(
            f"a header of {len(text)} bytes is longer than {HEADER_BYTES}; nothing was written: write one file for "
            "each contributor, or the weights alone"
        )
    return len(text).to_bytes(_LENGTH, "little") + text


def write(
    folder: fs.Folder,
    name: str,
    tensors: Sequence[Tensor],
    array_of: Callable[[Tensor], Array],
    metadata_of: Callable[[Mapping[str, str]], Mapping[str, str]],
) -> bool:
    """Write a file, one array in memory at a time; it has its name when it is whole and durable.

    Args:
        folder: where.
        name: of the file.
        tensors: as they were laid out.
        array_of: a tensor's array.
        metadata_of: the metadata, from the digest of every tensor's bytes; equally long whatever the digests are.

    Returns:
        Whether it was written; False where the name is taken.
    """
    head = len(header_bytes(tensors, metadata_of({each.name: _NO_DIGEST for each in tensors})))

    def parts() -> Iterator[tuple[int, memoryview]]:
        digests: dict[str, str] = {}
        for each in tensors:
            array = array_of(each)
            if (name_of(array), array.shape) != (each.dtype, each.shape):
                raise ManifestInvalid(
                    f"{each.name} is {array.dtype} {array.shape}, and {each.dtype} {each.shape} was announced"
                )
            data = memoryview(array.reshape(-1).view(np.uint8).data)
            digests[each.name] = digest_of(data)
            yield head + each.start, data
        yield 0, memoryview(header_bytes(tensors, metadata_of(digests)))  # last: now its digests are known

    return folder.publish_parts(name, parts())
