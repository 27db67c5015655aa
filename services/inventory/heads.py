"""A request's head, before anybody looks at whose it is: what is read from it, and what is refused in it.

Whatever two readers could read differently (two framings of one body, a version that is none) is refused, because the
other reader may be a proxy in front of this one.
"""

import re
import uuid
from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers

from services.inventory.problems import Fault

MAX_HEADERS = 100
# Also the most that is kept of a head that has not come to its end (h11's default).
MAX_HEAD_BYTES = 16 * 1024

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~-]{1,128}")
# RFC 9112, 3.2.2: a server takes the absolute form too.
_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
# Around a header's name and value: ": " and the line's end.
_FRAME_BYTES = 4


def request_id(headers: Headers) -> str:
    """The caller's own id for this request, if it is one and well-formed; else one that no other request has."""
    given = headers.getlist("x-request-id")
    return given[0] if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) else new_request_id()


def new_request_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


def to_origin_form(scope: MutableMapping[str, Any]) -> None:
    """Let a target with scheme and host say what it says without them."""
    raw_path: bytes = scope["raw_path"]
    prefix = _ABSOLUTE.match(raw_path)
    if prefix is not None:
        scope["raw_path"] = raw_path[prefix.end() :] or b"/"
        scope["path"] = unquote(scope["raw_path"].decode("ascii"))


def fault(scope: Mapping[str, Any]) -> Fault | None:
    """What makes this head unusable, if anything does."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    names = {name for name, _ in headers}
    size = sum(len(name) + len(value) + _FRAME_BYTES for name, value in headers)
    if scope["http_version"] not in {"1.0", "1.1"}:
        return Fault(at="", message="It must be HTTP/1.1 or HTTP/1.0.")
    if size + len(scope["raw_path"]) + len(scope["query_string"]) > MAX_HEAD_BYTES:
        return Fault(at="", message=f"The target and the headers may have {MAX_HEAD_BYTES} bytes together.")
    if len(headers) > MAX_HEADERS:
        return Fault(at="", message=f"There may be {MAX_HEADERS} headers.")
    if {b"content-length", b"transfer-encoding"} <= names:
        return Fault(at="Content-Length", message="A body with a Transfer-Encoding has no Content-Length.")
    if b"transfer-encoding" in names and scope["http_version"] == "1.0":
        return Fault(at="Transfer-Encoding", message="HTTP/1.0 has none.")
    return None


def waits_to_send(headers: Headers) -> bool:
    """Whether the caller sends its body only when it is told to: `Expect: 100-continue`."""
    return headers.get("expect", "").lower() == "100-continue"


def declared_bytes(headers: Headers) -> int:
    """How long the body is said to be; 0 when nothing is said."""
    return int(headers.get("content-length", "0"))
