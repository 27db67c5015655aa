"""The file system: what is opened, what is published, and what is announced."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.checkpoints import fs
from services.checkpoints.errors import ManifestInvalid, SizeMismatch


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """What is announced, both moments of it."""
    seen: list[str] = []
    fs.on_mutation = lambda number, moment, call: seen.append(f"{number} {moment} {call}")
    yield seen
    fs.on_mutation = None


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[fs.Folder]:
    """An open root."""
    with fs.open_root(tmp_path) as opened:
        yield opened


def make_fifo(path: Path) -> None:
    """Opening one without O_NONBLOCK waits for ever."""
    os.mkfifo(path)


def make_link(path: Path) -> None:
    """To a file outside."""
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [make_fifo, make_link, Path.mkdir])
def test_only_a_regular_file_is_read(folder: fs.Folder, tmp_path: Path, make: object) -> None:
    """C47: a link, a fifo and a folder are refused before a byte is read, and nothing waits."""
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(ManifestInvalid, match="not a regular file"):
        folder.read("x", 1000)


def test_a_link_is_no_folder(folder: fs.Folder, tmp_path: Path) -> None:
    """C47: nothing below the root leads out of it."""
    (tmp_path / "x").symlink_to("/etc")
    (tmp_path / "y").write_text("")
    for name in ("x", "y"):
        with pytest.raises(ManifestInvalid, match="not a folder"):
            folder.folder(name)
    with pytest.raises(ManifestInvalid, match="not a folder"):
        folder.folder("x", create=True)


def test_a_small_file_is_read_within_its_bound(folder: fs.Folder, tmp_path: Path) -> None:
    """By its size, before it is read."""
    (tmp_path / "x").write_bytes(b"12345")
    assert folder.read("x", 5) == b"12345"
    with pytest.raises(ManifestInvalid, match="5 bytes"):
        folder.read("x", 4)


def test_a_name_is_given_once_and_its_bytes_never_change(folder: fs.Folder, tmp_path: Path) -> None:
    """C40: the second writer is told, and leaves no temporary."""
    assert folder.publish("x", b"mine")
    assert not folder.publish("x", b"yours")
    assert folder.read("x", 10) == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_bytes_are_durable_before_they_have_their_name(folder: fs.Folder, calls: list[str]) -> None:
    """Create, write, fsync, link: each announced before and after, in one numbering."""
    folder.publish("x", b"1")
    words = [each.split() for each in calls]
    assert [each[2] for each in words[::2]] == ["create", "write", "fsync", "link", "unlink"]
    assert [each[1] for each in words] == ["before", "after"] * 5
    numbers = [int(each[0]) for each in words]
    assert numbers[::2] == numbers[1::2] == list(range(numbers[0], numbers[0] + 5))


def test_a_message_is_not_synced(folder: fs.Folder, calls: list[str]) -> None:
    """Only what a restore depends on is."""
    folder.publish("x", b"1", durable=False)
    assert not [each for each in calls if "fsync" in each]


def test_a_call_that_a_hook_refuses_is_not_made(folder: fs.Folder, tmp_path: Path) -> None:
    """So that a test's failure is the call's failure."""

    def refuse(_number: int, _moment: str, call: str) -> None:
        if call.startswith("link"):
            raise OSError(errno.EIO, "refused")

    fs.on_mutation = refuse
    try:
        with pytest.raises(OSError, match="refused"):
            folder.publish("x", b"1")
    finally:
        fs.on_mutation = None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, (8 << 20) + 5])
@pytest.mark.parametrize("offset", [0, 1])
def test_parts_are_padded_to_blocks_wherever_they_lie_in_memory(
    folder: fs.Folder, tmp_path: Path, size: int, offset: int
) -> None:
    """Aligned or not, the same bytes stand in the file."""
    random = np.random.default_rng(1)
    memory = random.integers(0, 256, size + 8192, np.uint8)
    start = -memory.ctypes.data % 4096 + offset
    part = memory[start : start + size]
    assert fs.aligned(part.data) is (size == 0 or offset == 0)
    folder.write_new("x", [part.data, memoryview(b"end")])
    data = (tmp_path / "x").read_bytes()
    padded = fs.padded_length(size)
    assert len(data) == padded + 4096
    assert data[:size] == part.tobytes()
    assert data[size:padded].strip(b"\0") == b""
    assert data[padded:].rstrip(b"\0") == b"end"


def test_a_data_file_is_never_written_over(folder: fs.Folder) -> None:
    """C40, C22: its name is its writer's alone."""
    folder.write_new("x", [memoryview(b"mine")])
    with pytest.raises(FileExistsError):
        folder.write_new("x", [memoryview(b"yours")])
    assert folder.read("x", 4096).rstrip(b"\0") == b"mine"


def test_a_file_that_ends_early_is_named(folder: fs.Folder, tmp_path: Path) -> None:
    """It is not filled with zeros."""
    (tmp_path / "x").write_bytes(b"12345")
    with folder.open("x") as file, pytest.raises(SizeMismatch, match="ends at byte 5"):
        file.read_into(memoryview(bytearray(3)), 3)


@pytest.mark.parametrize("direct", [True, False])
def test_what_is_read_past_the_page_cache_is_the_same(folder: fs.Folder, direct: bool) -> None:
    """And a file that ends inside a block is too short there, too."""
    data = np.random.default_rng(2).integers(0, 256, (9 << 20) + 4096, np.uint8)
    folder.write_new("x", [data.data])
    target = fs.aligned_bytes(len(data) - 4096)
    assert target.ctypes.data % 4096 == 0
    with folder.open("x", direct=direct) as file:
        file.read_into(target.data, 4096)
        assert target.tobytes() == data[4096:].tobytes()
        with pytest.raises(SizeMismatch):
            file.read_into(target.data, 8192)


def test_names_leave_out_what_a_dead_writer_left(folder: fs.Folder, tmp_path: Path) -> None:
    """Readers see names that were given."""
    (tmp_path / (fs.TEMPORARY + "0")).write_text("")
    folder.publish("b", b"")
    folder.publish("a", b"")
    assert folder.names() == ["a", "b"]
    assert folder.temporaries() == [fs.TEMPORARY + "0"]
    assert folder.has("a")
    folder.remove("a")
    folder.remove("a")
    assert not folder.has("a")


def test_a_new_folder_is_durable_in_its_parent(tmp_path: Path, calls: list[str]) -> None:
    """Also the root's own parents, when they are new."""
    with fs.open_root(tmp_path / "a" / "b", create=True) as root, root.folder("c", create=True):
        assert stat.S_ISDIR((tmp_path / "a" / "b" / "c").stat().st_mode)
    done = [each.split(" ", 2)[2] for each in calls if " after " in each]
    assert done == [
        f"mkdir {tmp_path}/a", f"fsync {tmp_path}", f"mkdir {tmp_path}/a/b", f"fsync {tmp_path}/a",
        f"mkdir {tmp_path}/a/b/c", f"fsync {tmp_path}/a/b",
    ]  # fmt: skip


def test_the_writer_says_whether_the_page_cache_was_passed(folder: fs.Folder) -> None:
    """As the file system decided, by trying."""
    assert folder.write_new("x", [memoryview(b"1")]) in {True, False}


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO])
def test_a_link_whose_answer_was_lost_is_ours(folder: fs.Folder, tmp_path: Path, code: int) -> None:
    """A file server made it and said otherwise: both names are one file. Somebody else's file is still not ours."""

    def lie(_number: int, moment: str, call: str) -> None:
        if call.startswith("link") and moment == "after":
            raise OSError(code, os.strerror(code))

    fs.on_mutation = lie
    try:
        assert folder.publish("x", b"mine")
        assert not folder.publish("x", b"yours")
    finally:
        fs.on_mutation = None
    assert folder.read("x", 10) == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_what_could_not_be_written_gives_its_room_back(folder: fs.Folder, tmp_path: Path) -> None:
    """On a full disk, parts of files would keep it full; what was there before stays."""

    def refuse(_number: int, _moment: str, call: str) -> None:
        if call.startswith("fsync"):
            raise OSError(errno.ENOSPC, "full")

    folder.write_new("kept", [memoryview(b"1")])
    fs.on_mutation = refuse
    try:
        with pytest.raises(OSError, match="full"):
            folder.publish("x", b"1")
        with pytest.raises(OSError, match="full"):
            folder.write_new("y", [memoryview(b"1")])
        with pytest.raises(FileExistsError):
            folder.write_new("kept", [memoryview(b"2")])
    finally:
        fs.on_mutation = None
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
