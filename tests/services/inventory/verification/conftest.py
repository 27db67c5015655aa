"""A database with everything in it."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.postgres import Databases
from tests.services.inventory.verification.workload import fill
