"""Where the cases of a session keep their journals and their inventory: on SQLite, or on PostgreSQL."""

import itertools
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from services.database import migrate
from tests.postgres import Databases


class Stores(ABC):
    """Databases at this build's schema."""

    @abstractmethod
    def journal(self) -> str:
        """The URL of a new, empty journal."""

    @abstractmethod
    def inventory(self) -> str:
        """The URL of a new, empty inventory."""


class SqliteStores(Stores):
    """One file to a database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._empty = folder / "empty-journal.db"
        migrate("journal", f"sqlite:///{self._empty}")

    def journal(self) -> str:
        """The URL of a new, empty journal."""
        return _url(Path(shutil.copyfile(self._empty, self._new("journal"))))

    def inventory(self) -> str:
        """The URL of a new, empty inventory."""
        url = _url(self._new("inventory"))
        migrate("inventory", url)
        return url

    def _new(self, name: str) -> Path:
        return self._folder / f"{name}-{next(self._numbers)}.db"


class PostgresStores(Stores):
    """One database to a store."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def journal(self) -> str:
        """The URL of a new, empty journal."""
        return self._databases.migrated("journal")

    def inventory(self) -> str:
        """The URL of a new, empty inventory."""
        return self._databases.migrated("inventory")


def _url(file: Path) -> str:
    return f"sqlite:///{file}"
