"""The service's log on stderr: one line for each thing that happened, for people or as JSON.

- Every line says when, how grave and what: `time`, `level`, `event`. A traceback is a member of its line.
- Tenants and keys may be in it, since operators search by them. Tokens and bodies never are: of an error's message
  only the first line is shown, because a driver goes on with the statement, its parameters and the row.
- Probes that went well (/livez, /readyz, /metrics) are left out.
- What libraries say is shown from a warning on; uvicorn's warnings are about what is a line of ours already.
"""

import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from services.inventory.exchanges import Exchange

LogFormat = Literal["text", "json"]

_OURS = "services.inventory"
_FIELDS = "fields"
_MESSAGE = 500
# What is not ASCII is spelled out, so that no character of a message breaks a line or an encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)
_LOG = logging.getLogger(_OURS)


def event(name: str, fields: Mapping[str, Any] | None = None, *, level: int = logging.INFO) -> None:
    """Write that something happened; inside an `except`, a level from ERROR on adds the traceback."""
    _LOG.log(level, name, extra={_FIELDS: dict(fields or {})}, exc_info=level >= logging.ERROR)


def request(exchange: Exchange) -> None:
    """Write one request and its answer."""
    if not exchange.is_noise:
        event("request", exchange.fields())


@contextmanager
def to_stderr(form: LogFormat) -> Iterator[None]:
    """Write the log of this process while the block runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    handler.addFilter(_is_wanted)
    root = logging.getLogger()
    levels = [(logger, logger.level) for logger in (root, _LOG)]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in levels:
            logger.setLevel(level)


def _is_wanted(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not record.name.startswith("uvicorn")


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return _ENCODER.encode(_members(record))


class Text(logging.Formatter):
    """The same for people: what they look for first, then the rest by its name."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; its traceback follows it."""
        members = _members(record)
        words = [members.pop("time"), members.pop("level").upper(), members.pop("event")]
        trace = members.pop("traceback", None)
        if record.msg == "request":
            words += [members.pop("method"), members.pop("route"), str(members.pop("status") or "unanswered")]
            members["seconds"] = f"{members['seconds']:.4f}"
        words += [f"{name}={value}" for name, value in members.items() if value not in (None, False, "none")]
        line = " ".join(_printable(word) for word in words)
        return line if trace is None else f"{line}\n{trace}"


def _members(record: logging.LogRecord) -> dict[str, Any]:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    members: dict[str, Any] = {"time": when, "level": record.levelname.lower()}
    fields = getattr(record, _FIELDS, None)
    if fields is None:
        members |= {"event": "library", "logger": record.name, "message": record.getMessage()}
    else:
        members |= {"event": record.msg, **fields}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        members["traceback"] = _traceback(error)
    return members


def _traceback(error: BaseException) -> str:
    """The error and what it came from, the newest last."""
    parts = []
    reason: BaseException | None = error
    while reason is not None:
        lines = str(reason).splitlines() or [""]
        frames = "".join(traceback.format_tb(reason.__traceback__))
        parts.append(f"{frames}{type(reason).__qualname__}: {lines[0][:_MESSAGE]}")
        reason = reason.__cause__ or (None if reason.__suppress_context__ else reason.__context__)
    return "\n".join(reversed(parts))


def _printable(word: str) -> str:
    """Nothing that would begin a line or move a terminal's cursor."""
    return word if word.isprintable() else ascii(word)
