"""Checkpoints as somebody else would have changed them: with true digests all the way up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.checkpoints.records import canonical, record_digest, sealed


def paths(root: Path, sequence: int) -> tuple[Path, Path]:
    """A commit record, and the folder of its save."""
    log = root / "runs/r1/log" / f"{sequence}.json"
    record = json.loads(log.read_bytes())
    return log, root / "runs/r1/data" / f"{record['epoch']}-{record['save_id']}"


def flip(path: Path, at: int = 0) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def record(root: Path, sequence: int, contributor: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a contributor's record, and all digests above it."""
    _, folder = paths(root, sequence)
    path = folder / f"{contributor}.json"
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(canonical_as_written(raw))

    def renamed(manifest: dict[str, Any]) -> None:
        for each in manifest["records"]:
            if each["contributor"] == contributor:
                each["digest"] = digest_as_written(raw)

    manifest(root, sequence, renamed)


def manifest(root: Path, sequence: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest, and the commit record that names it."""
    log, folder = paths(root, sequence)
    raw = json.loads((folder / "manifest.json").read_bytes())
    change(raw)
    (folder / "manifest.json").write_bytes(canonical_as_written(raw))
    named = json.loads(log.read_bytes())
    named["manifest"] = digest_as_written(raw)
    log.write_bytes(canonical_as_written(named))


def canonical_as_written(raw: dict[str, Any]) -> bytes:
    """A record sealed again; tags stay tags."""
    return canonical({**_plain(raw), "digest": digest_as_written(raw)})


def digest_as_written(raw: dict[str, Any]) -> str:
    """The digest that a true record of this content has."""
    return record_digest(sealed(_plain(raw)))


def _plain(raw: Any) -> Any:
    match raw:
        case {"$float": str(text)}:
            return float.fromhex(text)
        case {"$int": str(text)}:
            return int(text)
        case dict():
            return {key: _plain(each) for key, each in raw.items()}
        case list():
            return [_plain(each) for each in raw]
        case _:
            return raw
