"""Where things are: names derived from validated ids, and nothing else is opened.

<root>/runs/<run_id>/
    RUN.json                         published once
    log/<sequence>.json              the truth: `open` and `commit` records
    data/<epoch>-<save_id>/          <id>.bin, <id>.json, manifest.json, and the messages of that save
    contracts/<sha256>.json          pins/<sequence>          retired/<sequence>          meet/<launch>/
"""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from . import fs
from .errors import ManifestInvalid
from .records import SMALL_BYTES, canonical, check_id, check_random, sealed, unsealed

RUN_FORMAT: Final = "counterfoil-run-1"
FOLDERS: Final = ("log", "data", "contracts", "pins", "retired", "meet")

# What the messages of a save are called: no contributor may have such a name, or one would be taken for the other.
RESERVED: Final = frozenset(
    (
        "declare",
        "captured",
        "release",
        "abort",
        "failed",
        "outcome",
        "open",
        "offer",
        "vote",
        "verdict",
        "save",
        "manifest",
    )
)
_DATA: Final = re.compile(r"(?P<epoch>[1-9][0-9]{0,17})-(?P<save_id>[0-9a-f]{32})")
_SEQUENCE: Final = re.compile(r"[1-9][0-9]{0,17}")


def check_contributor(text: object) -> str:
    """A contributor's id: an id that is no message's name.

    Raises:
        ManifestInvalid: it is not one.
    """
    name = check_id(text, "contributor")
    if name.partition(".")[0] in RESERVED:
        raise ManifestInvalid(f"contributor {name!r} is a message's name; give it another id, such as its rank")
    return name


def record_name(contributor: str) -> str:
    """The file of a contributor's record."""
    return f"{check_contributor(contributor)}.json"


def data_name(contributor: str) -> str:
    """The file of a contributor's bytes."""
    return f"{check_contributor(contributor)}.bin"


def save_folder(epoch: int, save_id: str) -> str:
    """The folder of one save."""
    return f"{epoch}-{check_random(save_id)}"


def epoch_of_folder(name: str) -> int | None:
    """The epoch that a save's folder was made in; None where it is not such a folder."""
    found = _DATA.fullmatch(name)
    return int(found["epoch"]) if found else None


def slot_name(sequence: int) -> str:
    """The file of one record of the log."""
    return f"{sequence}.json"


def sequences_in(names: list[str]) -> list[int]:
    """The sequences among the names of pins or retired marks, ascending."""
    return sorted(int(name) for name in names if _SEQUENCE.fullmatch(name))


@dataclass(frozen=True, slots=True)
class Run:
    """One run's folder, open, with its six folders.

    Attributes:
        run_id: the run.
        folder: `runs/<run_id>`; the others are in it.
        chain: the folders above it up to the root, nearest first: a new run is durable when they are synced.
    """

    run_id: str
    folder: fs.Folder
    chain: tuple[fs.Folder, ...]
    log: fs.Folder
    data: fs.Folder
    contracts: fs.Folder
    pins: fs.Folder
    retired: fs.Folder
    meet: fs.Folder

    @classmethod
    def open(cls, root: str | Path, run_id: str, *, create: bool = False) -> Self:
        """Open a run's folders, and make them where `create` says so.

        Raises:
            FileNotFoundError: there is no such run.
            ManifestInvalid: its id, RUN.json or one of the folders is not what it must be.
        """
        check_id(run_id, "run")
        with ExitStack() as opened:
            top = opened.enter_context(fs.open_root(root, create=create))
            runs = opened.enter_context(top.folder("runs", create=create))
            folder = opened.enter_context(runs.folder(run_id, create=create))
            if create and not folder.has("RUN.json"):
                folder.publish("RUN.json", canonical(sealed({"format": RUN_FORMAT, "run": run_id})))
                folder.sync()
            stated = unsealed(folder.read("RUN.json", SMALL_BYTES), form=RUN_FORMAT)
            if stated.get("run") != run_id:
                raise ManifestInvalid(f"{folder.path}/RUN.json is of run {stated.get('run')!r}: the folder was moved")
            inner = {name: opened.enter_context(folder.folder(name, create=create)) for name in FOLDERS}
            opened.pop_all()
        return cls(run_id=run_id, folder=folder, chain=(folder, runs, top), **inner)

    def close(self) -> None:
        """Give all descriptors back."""
        for each in (self.log, self.data, self.contracts, self.pins, self.retired, self.meet, *self.chain):
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, epoch: int, save_id: str, *, create: bool = False) -> fs.Folder:
        """The folder of one save.

        Raises:
            FileNotFoundError: it is not there, and `create` is not given.
            FileExistsError: it is there, and `create` is given: a save id is never used twice.
        """
        name = save_folder(epoch, save_id)
        return self.data.new_folder(name) if create else self.data.folder(name)
