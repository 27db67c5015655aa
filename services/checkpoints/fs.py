"""Every file-system call of the store. What changes anything is numbered, so that a test can stop the process there.

- Below the root, names are opened relative to a directory descriptor with O_NOFOLLOW | O_NONBLOCK, and a file must be
  regular before a byte of it is read: no link, fifo or device is followed or waited for.
- Nothing is overwritten and nothing is renamed over something: a file is made under a temporary name and linked.
- A failed fsync is never tried again: a second one may succeed although the bytes are lost.

A mutating call is announced to `on_mutation` before and after it, with its number, the moment and what it does. A hook
that raises an OSError before a call stands for that call's failure.
"""

import errno
import fcntl
import mmap
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from .errors import ManifestInvalid, SizeMismatch

BLOCK_BYTES: Final = 4096
CHUNK_BYTES: Final = 8 << 20  # a write of this size reaches the device's speed, and a bounce buffer of it is cheap
TEMPORARY: Final = ".tmp-"
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

on_mutation: Callable[[int, str, str], None] | None = None
_count = 0
_counting = threading.Lock()


@contextmanager
def _mutation(call: str) -> Iterator[None]:
    global _count  # noqa: PLW0603 - one numbering for the process
    with _counting:
        _count += 1
        number = _count
    if on_mutation is not None:
        on_mutation(number, "before", call)
    yield
    if on_mutation is not None:
        on_mutation(number, "after", call)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


class Folder:
    """An open directory.

    Attributes:
        path: for messages only; the descriptor is what is used.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def folder(self, name: str, *, create: bool = False) -> "Folder":
        """A folder in this one; made, and its entry made durable, where it is not there and `create` says so.

        Raises:
            FileNotFoundError: it is not there.
            ManifestInvalid: the name is a link or not a folder.
        """
        if create:
            try:
                with _mutation(f"mkdir {self.path}/{name}"):
                    os.mkdir(name, 0o777, dir_fd=self._descriptor)
            except FileExistsError:
                pass
            else:
                self.sync()
        try:
            found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=self._descriptor)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise ManifestInvalid(f"{self.path}/{name} is not a folder; nothing in it was read") from error
            raise
        return Folder(found, f"{self.path}/{name}")

    def new_folder(self, name: str) -> "Folder":
        """A folder that was not there before.

        Raises:
            FileExistsError: it was.
        """
        with _mutation(f"mkdir {self.path}/{name}"):
            os.mkdir(name, 0o777, dir_fd=self._descriptor)
        return self.folder(name)

    def names(self) -> list[str]:
        """What is in it, without temporaries, sorted."""
        return sorted(name for name in os.listdir(self._descriptor) if not name.startswith("."))  # noqa: PTH208

    def temporaries(self) -> list[str]:
        """What a writer that died left behind, or one that lives is writing."""
        return sorted(name for name in os.listdir(self._descriptor) if name.startswith(TEMPORARY))  # noqa: PTH208

    def has(self, name: str) -> bool:
        """Whether the name is there, whatever it is."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def changed_at(self, name: str) -> float:
        """When the name's content last changed, as the file system's clock says."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime

    def open(self, name: str, *, direct: bool = False) -> "ReadFile":
        """A regular file, for reading.

        Args:
            name: the file.
            direct: past the page cache, where the file system allows it: what is read is then what the disk has.

        Raises:
            FileNotFoundError: it is not there.
            ManifestInvalid: it is a link, a fifo, a device or a folder.
        """
        try:
            descriptor = os.open(name, os.O_RDONLY | _SAFE | (_DIRECT if direct else 0), dir_fd=self._descriptor)
        except OSError as error:
            if error.errno == errno.EINVAL and direct:
                return self.open(name)
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise ManifestInvalid(f"{self.path}/{name} is not a regular file; nothing of it was read") from error
            raise
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise ManifestInvalid(f"{self.path}/{name} is not a regular file; nothing of it was read")
        return ReadFile(descriptor, f"{self.path}/{name}", found.st_size, direct=direct)

    def read(self, name: str, limit: int) -> bytes:
        """All bytes of a small file.

        Raises:
            FileNotFoundError: it is not there.
            ManifestInvalid: it is not regular, or longer than the limit.
        """
        with self.open(name) as file:
            if file.size > limit:
                raise ManifestInvalid(f"{file.path} has {file.size} bytes, more than the {limit} it may have")
            data = bytearray(file.size)
            file.read_into(memoryview(data), 0)
            return bytes(data)

    def sync(self) -> None:
        """Make the names in it durable. Readers may do so too: it adds nothing to them."""
        with _mutation(f"fsync {self.path}"):
            _sync(self._descriptor)

    def publish(self, name: str, data: bytes, *, durable: bool = True) -> bool:
        """Give bytes a name that nobody had: written and synced first, then linked.

        Args:
            name: the final name.
            data: the whole content.
            durable: whether the content is synced before it gets its name. The name itself is durable after `sync`.

        Returns:
            Whether the name is now ours; False where somebody had it. After an OSError the caller reads it back.
        """
        temporary = TEMPORARY + secrets.token_hex(16)
        descriptor = self._create(temporary, 0)
        try:
            try:
                with _mutation(f"write {self.path}/{name}"):
                    _write_all(descriptor, memoryview(data), 0)
                if durable:
                    with _mutation(f"fsync {self.path}/{name}"):
                        _sync(descriptor)
            finally:
                os.close(descriptor)
            return self._link(temporary, name)
        finally:
            self.remove(temporary)

    def hold(self, name: str, data: bytes) -> "Held | None":
        """Give bytes a name that nobody had, locked until it is given back or this process ends, however it ends.

        The lock is a record lock: no child inherits it, and a stopped process keeps it.

        Returns:
            None where somebody had the name.

        Raises:
            OSError: it could not be written, or the file system has no locks.
        """
        temporary = TEMPORARY + secrets.token_hex(16)
        descriptor = self._create(temporary, 0)
        try:
            try:
                with _mutation(f"write {self.path}/{name}"):
                    _write_all(descriptor, memoryview(data), 0)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who sees the name sees it held
                ours = self._link(temporary, name)
            finally:
                self.remove(temporary)
        except BaseException:
            os.close(descriptor)
            raise
        if not ours:
            os.close(descriptor)
            return None
        return Held(descriptor)

    def is_held(self, name: str) -> bool:
        """Whether another process that made the name by `hold` still has it; True also where that cannot be known."""
        try:
            descriptor = os.open(name, os.O_RDONLY | _SAFE, dir_fd=self._descriptor)
        except OSError:
            return True
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _link(self, temporary: str, name: str) -> bool:
        try:
            with _mutation(f"link {self.path}/{name}"):
                os.link(
                    temporary, name,
                    src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor, follow_symlinks=False,
                )  # fmt: skip
        except OSError as error:
            # A file server's answer may be lost and the call made again: then both names are one file, and it is ours.
            if self._same(temporary, name):
                return True
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def _same(self, one: str, other: str) -> bool:
        try:
            return os.path.samestat(
                *(os.stat(each, dir_fd=self._descriptor, follow_symlinks=False) for each in (one, other))
            )
        except OSError:
            return False

    def write_new(self, name: str, parts: Iterable[memoryview]) -> bool:
        """A new file of parts, each padded with zeros to a multiple of 4096, synced.

        Returns:
            Whether it was written past the page cache (O_DIRECT), as the file system allows.

        Raises:
            FileExistsError: the name is taken.
        """
        try:
            descriptor = self._create(name, _DIRECT)
            direct = bool(_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL or not _DIRECT:
                raise
            # Some file systems make the file before they refuse the flag: it is ours and empty.
            self.remove(name)
            descriptor, direct = self._create(name, 0), False
        try:
            with _Writer(descriptor, f"{self.path}/{name}", direct=direct) as writer:
                for part in parts:
                    writer.add(part)
                direct = writer.direct
            with _mutation(f"fsync {self.path}/{name}"):
                _sync(descriptor)
        except BaseException:
            self.remove(name)  # on a full disk, what cannot be finished gives its room back
            raise
        finally:
            os.close(descriptor)
        return direct

    def remove(self, name: str) -> None:
        """Take a name away; it may be gone already."""
        with _mutation(f"unlink {self.path}/{name}"):
            try:
                os.unlink(name, dir_fd=self._descriptor)
            except FileNotFoundError:
                return

    def remove_folder(self, name: str) -> None:
        """Take an empty folder away; it may be gone already."""
        with _mutation(f"rmdir {self.path}/{name}"):
            try:
                os.rmdir(name, dir_fd=self._descriptor)
            except FileNotFoundError:
                return

    def _create(self, name: str, flags: int) -> int:
        with _mutation(f"create {self.path}/{name}"):
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE | flags, 0o666, dir_fd=self._descriptor)


class Held:
    """A name that is held; it stays when it is given back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give it back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ReadFile:
    """An open regular file.

    Attributes:
        path: for messages.
        size: its length when it was opened.
    """

    def __init__(self, descriptor: int, path: str, size: int, *, direct: bool = False) -> None:
        self._descriptor = descriptor
        self._direct = direct
        self.path = path
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill the target from the file.

        Past the page cache both begin at a multiple of 4096, and the length is one.

        Raises:
            SizeMismatch: the file ends before.
        """
        done = 0
        while done < len(target):
            got = self._read(target[done : done + CHUNK_BYTES], offset + done)
            if got == 0:
                raise SizeMismatch(f"{self.path} ends at byte {offset + done}, where more was recorded")
            done += got

    def _read(self, target: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [target], offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            _without_direct(self._descriptor)
            self._direct = False
            return os.preadv(self._descriptor, [target], offset)


def _without_direct(descriptor: int) -> None:
    """From here on through the page cache: the file system opened it otherwise, and then refused."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT)


class _Writer:
    """Writes parts in chunks; whole blocks straight from where they are, when they are aligned."""

    def __init__(self, descriptor: int, path: str, *, direct: bool) -> None:
        self._descriptor = descriptor
        self._path = path
        self._offset = 0
        self._bounce = mmap.mmap(-1, CHUNK_BYTES)  # anonymous memory begins at a page
        self.direct = direct

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bounce.close()

    def add(self, part: memoryview) -> None:
        """One part, and zeros up to the next block."""
        part = as_bytes(part)
        blocks = len(part) // BLOCK_BYTES * BLOCK_BYTES if aligned(part) else 0
        for at in range(0, blocks, CHUNK_BYTES):
            self._write(part[at : min(at + CHUNK_BYTES, blocks)])
        for at in range(blocks, len(part), CHUNK_BYTES):
            chunk = part[at : at + CHUNK_BYTES]
            padded = padded_length(len(chunk))
            with memoryview(self._bounce) as bounce:
                bounce[: len(chunk)] = chunk
                bounce[len(chunk) : padded] = bytes(padded - len(chunk))
                with bounce[:padded] as whole:
                    self._write(whole)

    def _write(self, data: memoryview) -> None:
        with _mutation(f"write {self._path} {self._offset}+{len(data)}"):
            try:
                _write_all(self._descriptor, data, self._offset)
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                _without_direct(self._descriptor)
                self.direct = False
                _write_all(self._descriptor, data, self._offset)
        self._offset += len(data)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def as_bytes(view: memoryview) -> memoryview:
    """The view as single bytes; an empty one has no other form."""
    return view.cast("B") if view.nbytes else memoryview(b"")


def aligned(part: memoryview) -> bool:
    """Whether the bytes begin at a multiple of 4096, as O_DIRECT asks of them."""
    return np.frombuffer(part, np.uint8).ctypes.data % BLOCK_BYTES == 0 if len(part) else True


def aligned_bytes(length: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """New memory that begins at a multiple of 4096."""
    raw = np.empty(length + BLOCK_BYTES, np.uint8)
    start = -raw.ctypes.data % BLOCK_BYTES
    return raw[start : start + length]


def padded_length(nbytes: int) -> int:
    """The length with its padding to whole blocks."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def open_root(path: str | Path, *, create: bool = False) -> Folder:
    """The root folder; its own path may hold links, as the engineer chose it.

    Raises:
        FileNotFoundError: it is not there, and `create` does not make it.
    """
    path = Path(path)
    missing = [each for each in (path, *path.parents) if not each.exists()] if create else []
    for each in reversed(missing):
        with _mutation(f"mkdir {each}"):
            each.mkdir(exist_ok=True)
        with Folder(os.open(each.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), str(each.parent)) as parent:
            parent.sync()
    return Folder(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), str(path))
