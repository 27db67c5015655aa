"""A disk that keeps as little as it may: real traces of the store, cut anywhere, with an adversary for fsync.

What was synced is there. Of everything else the adversary chooses: a name that was made or taken away in a folder since
that folder was synced, and the bytes of a file since that file was synced (none, zeros, a part, or all). Files of the
store never change after they have their name, so that their bytes are those that the run left behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

# What may be there of bytes that were never synced.
FATES = ("none", "zeros", "part", "all")


@dataclass(slots=True)
class File:
    """A file: its bytes in the end, how many were written, and how many of them were synced."""

    content: bytes = b""
    written: int = 0
    synced: int = 0


@dataclass(slots=True)
class Folder:
    """A folder: what is durable in it, what a process sees in it, and the changes in between."""

    durable: dict[str, "File | Folder"] = field(default_factory=dict)
    seen: dict[str, "File | Folder"] = field(default_factory=dict)
    pending: list[tuple[str, "File | Folder | None"]] = field(default_factory=list)

    def change(self, name: str, node: "File | Folder | None") -> None:
        """A name is made, or taken away."""
        self.pending.append((name, node))
        _apply(self.seen, name, node)

    def sync(self) -> None:
        """All changes are durable."""
        for name, node in self.pending:
            _apply(self.durable, name, node)
        self.pending.clear()


def _apply(names: dict[str, File | Folder], name: str, node: File | Folder | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Disk:
    """The model: the calls of a trace are done to it, one by one."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.root = Folder()
        self._contents = contents
        self._newest = File()
        self._unnamed: dict[str, File] = {}

    def do(self, call: str) -> None:
        """One call, as `fs` announced it, with paths from the root."""
        verb, _, rest = call.partition(" ")
        path, _, extent = rest.partition(" ")
        folder, name = self._place(path)
        match verb:
            case "mkdir":
                if name not in folder.seen:
                    folder.change(name, Folder())
            case "create":
                self._newest = File(content=self._contents.get(path, b""))
                folder.change(name, self._newest)
            case "write" if extent:
                start, _, length = extent.partition("+")
                self._newest.written = int(start) + int(length)
            case "write":
                self._newest.content = self._contents[path]
                self._newest.written = len(self._newest.content)
                self._unnamed[path] = self._newest
            case "fsync":
                self._sync(path, folder, name)
            case "link":
                if name not in folder.seen:
                    folder.change(name, self._unnamed[path])
            case "unlink" | "rmdir":
                folder.change(name, None)

    def _sync(self, path: str, folder: Folder, name: str) -> None:
        node = self.root if not path else self._unnamed.get(path) or folder.seen[name]
        if isinstance(node, Folder):
            node.sync()
        else:
            node.synced = node.written

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self.root
        *above, name = path.strip("/").split("/")
        for each in above:
            inner = folder.seen[each]
            assert isinstance(inner, Folder)
            folder = inner
        return folder, name

    def cut(self, random: Random) -> Iterator[tuple[str, bytes | None]]:
        """What is there after the power came back: folders (None) and files, parents first."""
        yield from _left(self.root, "", random)


def _left(folder: Folder, path: str, random: Random) -> Iterator[tuple[str, bytes | None]]:
    names = dict(folder.durable)
    for name, node in folder.pending:
        if random.random() < 0.5:
            _apply(names, name, node)
    for name, node in names.items():
        below = f"{path}/{name}"
        if isinstance(node, Folder):
            yield below, None
            yield from _left(node, below, random)
        else:
            yield below, _bytes(node, random)


def _bytes(file: File, random: Random) -> bytes:
    kept, loose = file.content[: file.synced], file.content[file.synced : file.written]
    match random.choice(FATES):
        case "none":
            return kept
        case "zeros":
            return kept + bytes(len(loose))
        case "part":
            return kept + loose[: random.randrange(len(loose) + 1)]
        case _:
            return kept + loose


def contents(root: Path, calls: Sequence[str]) -> dict[str, bytes]:
    """The bytes of every file that a run left behind, or that a copy of it kept."""
    found = {f"/{path.relative_to(root).as_posix()}": path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for call in calls:
        verb, _, path = call.partition(" ")
        if verb == "write" and " " not in path:
            found.setdefault(path, b"")
    return found


def lay_out(place: Path, left: Iterator[tuple[str, bytes | None]]) -> None:
    """A state of the model, on a real disk, for the real reader."""
    place.mkdir()
    for path, data in left:
        target = place / path.removeprefix("/")
        if data is None:
            target.mkdir()
        else:
            target.write_bytes(data)
