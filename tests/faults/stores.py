"""Where the cases of a session keep their journals and their inventory: on SQLite, or on PostgreSQL."""

import itertools
import shutil
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

from services.database import migrate
from tests.postgres import Databases


class Stores(ABC):
    """Databases at this build's schema, and older copies of them."""

    @abstractmethod
    def journal(self) -> str:
        """The URL of a new, empty journal."""

    @abstractmethod
    def inventory(self) -> str:
        """The URL of a new, empty inventory."""

    @abstractmethod
    def copy(self, url: str) -> str:
        """The URL of a copy of a database, as it is now."""

    @abstractmethod
    def put_back(self, url: str, copy: str) -> None:
        """Put a database back to an older copy of it."""


class SqliteStores(Stores):
    """One file to a database; copies by SQLite's own backup, since a copied file lacks its write-ahead log."""

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

    def copy(self, url: str) -> str:
        """The URL of a copy of a database, as it is now."""
        copy = _url(self._new("copy"))
        self.put_back(copy, url)
        return copy

    def put_back(self, url: str, copy: str) -> None:
        """Put a database back to an older copy of it."""
        with closing(sqlite3.connect(_file(copy))) as old, closing(sqlite3.connect(_file(url))) as new:
            old.backup(new)

    def _new(self, name: str) -> Path:
        return self._folder / f"{name}-{next(self._numbers)}.db"


class PostgresStores(Stores):
    """One database to a store; copies by CREATE DATABASE ... TEMPLATE, which disconnects whoever is connected."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def journal(self) -> str:
        """The URL of a new, empty journal."""
        return self._databases.migrated("journal")

    def inventory(self) -> str:
        """The URL of a new, empty inventory."""
        return self._databases.migrated("inventory")

    def copy(self, url: str) -> str:
        """The URL of a copy of a database, as it is now."""
        return self._databases.copy(url)

    def put_back(self, url: str, copy: str) -> None:
        """Put a database back to an older copy of it."""
        self._databases.put_back(url, copy)


def _url(file: Path) -> str:
    return f"sqlite:///{file}"


def _file(url: str) -> str:
    return url.removeprefix("sqlite:///")
