"""The provider's side of docs/effects-api.md in one file, written from that page alone. Copy it.

One transaction at a time in one event loop, so there is nothing to lock; one database per tenant, so what another
tenant has does not exist. Left out are retention and signatures, which are the operator's choice, and of the service
around the contract: figures, the time in which a request has to arrive, and answers ahead of `100 Continue`.
"""

import argparse
import asyncio
import hashlib
import json
import logging
import math
import re
import socket
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, chain
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PROBLEMS = {
    "validation-failed": 400, "idempotency-key-missing": 400, "idempotency-key-invalid": 400, "unauthorized": 401,
    "forbidden": 403, "receipt-not-found": 404, "reservation-not-found": 404, "sku-not-found": 404, "not-found": 404,
    "method-not-allowed": 405, "insufficient-stock": 409, "unknown-sku": 409, "hold-expired": 409,
    "invalid-transition": 409, "predecessor-committed": 409, "request-in-progress": 409, "key-voided": 410,
    "not-after-passed": 412, "payload-too-large": 413, "idempotency-key-reused": 422, "internal": 500,
}  # fmt: skip
LONGEST_HEAD, MOST_HEADERS, LONGEST_BODY, LONGEST_LOOKUP, LONGEST_READ = 16_384, 100, 65_536, 131_072, 1_048_576
KEY, SKU = r"[A-Za-z0-9._~:-]{16,128}", r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}"
NUMBER, NOTE = r"0|[1-9][0-9]{0,17}", r"[^\0]+"
MOMENT = r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|\+00:00)"
LINE = {"sku": SKU, "quantity": 1_000_000_000}
# A shape: a grammar, the largest integer, what a list holds and how many, or members, where those with a ? may be null.
SHAPES: dict[str, Any] = {
    "reserve": {"lines": (LINE, 100), "hold_seconds?": 31_536_000, "reference?": NOTE},
    "confirm": {}, "release": {"reason?": NOTE}, "deliver": LINE, "lookup": {"keys": (rf"{KEY}(@expiry)?", 500)},
}  # fmt: skip
ROUTES = {  # path: method, what it is, its query; the first that fits
    r"/livez": ("GET", "live", {}),
    r"/readyz": ("GET", "ready", {}),
    r"/openapi\.json": ("GET", "openapi", {}),
    r"/v1/reservations": ("POST", "reserve", {}),
    r"/v1/reservations/([^/]+)": ("GET", "reservation", {}),
    r"/v1/reservations/([^/]+)/confirm": ("POST", "confirm", {}),
    r"/v1/reservations/([^/]+)/release": ("POST", "release", {}),
    r"/v1/deliveries": ("POST", "deliver", {}),
    r"/v1/receipts": (
        "GET",
        "feed",
        {"after": NUMBER, "limit": r"[1-9][0-9]{0,2}|1000", "reference": NOTE, "sku": SKU},
    ),
    r"/v1/receipts/lookup": ("POST", "lookup", {}),
    r"/v1/receipts/digests": ("GET", "digests", {"prefix": r"([0-9a-f]{2}){0,2}"}),
    r"/v1/receipts/([^/]+)": ("GET", "receipt", {}),
    r"/v1/receipts/([^/]+)/void": ("PUT", "void", {}),
    r"/v1/stock/([^/]+)": ("GET", "stock", {}),
    r"/v1/ledger/([^/]+)": ("GET", "ledger", {"after_version": NUMBER}),
}
# What a call does to units in a state: movement; signs of received, available, held and consumed; the state after.
MOVES = {
    ("deliver", ""): ("delivery", (1, 1, 0, 0), ""),
    ("reserve", ""): ("reserve", (0, -1, 0, 1), "consumed"),
    ("reserve", "hold"): ("hold", (0, -1, 1, 0), "held"),
    ("confirm", "held"): ("confirm", (0, 0, -1, 1), "consumed"),
    ("release", "held"): ("release", (0, 1, -1, 0), "released"),
    ("release", "consumed"): ("release", (0, 1, 0, -1), "released"),
    ("expiry", "held"): ("expiry", (0, 1, -1, 0), "expired"),
}
MARKS = {  # where a reservation says by whom and when
    "reserve": ("receipt_id", "created_at", "key"),
    "confirm": ("confirm_receipt_id", "confirmed_at", "confirm_key"),
    "release": ("release_receipt_id", "released_at", "release_key"),
    "expiry": ("expiry_receipt_id", "expired_at"),
}
RESERVATION = ("reservation_id", "state", "reference", "lines", "expires_at", *chain(*MARKS.values()))
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS receipts (sequence INTEGER PRIMARY KEY, key TEXT UNIQUE, reference TEXT,
    digits TEXT, item TEXT, text TEXT, answer TEXT);
CREATE TABLE IF NOT EXISTS reservations (id TEXT PRIMARY KEY, due TEXT, document TEXT);
CREATE TABLE IF NOT EXISTS movements (sku TEXT, version INTEGER, kind TEXT, quantity INTEGER, received INTEGER,
    available INTEGER, held INTEGER, consumed INTEGER, key TEXT, receipt_id TEXT, reservation_id TEXT, created_at TEXT,
    PRIMARY KEY (sku, version));
CREATE INDEX IF NOT EXISTS due ON reservations (due);
"""


def to_json(value: Any, **options: Any) -> str:
    """Text without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), **options)


def sha256(value: Any) -> str:
    """Of the RFC 8785 JSON, which is no more than sorted where names are ASCII and numbers are integers."""
    return hashlib.sha256(to_json(value, sort_keys=True).encode()).hexdigest()


def stamp(moment: datetime) -> str:
    """RFC 3339 with six digits, which sorts as the moments do."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def problem(name: str, detail: str = "Nothing was done.", **members: str) -> str:
    """A problem document; further members are JSON already, so that a receipt keeps its bytes."""
    title = name.replace("-", " ").capitalize()
    head = to_json({"type": f"/problems/{name}", "title": title, "status": PROBLEMS[name], "detail": detail})
    return head[:-1] + "".join(f',"{member}":{text}' for member, text in members.items()) + "}"


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: str
    outcome: str = "none"
    replayed: bool = False


class Refused(Exception):
    """An answer of which nothing is stored."""

    def __init__(self, name: str, detail: str = "Nothing was done.", **members: str) -> None:
        super().__init__(name)
        self.answer = Answer(PROBLEMS[name], problem(name, detail, **members))


def invalid(*errors: tuple[str, str]) -> Refused:
    """A 400 that says where, and what should be there."""
    return Refused("validation-failed", errors=to_json([{"at": at, "message": what} for at, what in errors[:20]]))


def faults(value: Any, shape: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Where a value has not its shape."""
    match shape:
        case dict() if isinstance(value, dict):
            names = {name.rstrip("?"): name for name in shape}
            for name in value.keys() - names:
                yield f"{at}/{name.replace('~', '~0').replace('/', '~1')}", "must not be there"
            for name, marked in names.items():
                if name == marked or value.get(name) is not None:
                    yield from faults(value.get(name), shape[marked], f"{at}/{name}")
        case (inner, most) if isinstance(value, list) and 1 <= len(value) <= most:
            for position, item in enumerate(value):
                yield from faults(item, inner, f"{at}/{position}")
        case int() if type(value) is int and 1 <= value <= shape:
            pass
        case str() if isinstance(value, str) and len(value.encode()) <= 512 and re.fullmatch(shape, value):
            pass
        case _:
            yield at, "is missing or not valid"


def _number(read: type, longest: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if len(text.lstrip("-")) > longest or not math.isfinite(read(text)):
            raise ValueError
        return read(text)

    return parse


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        raise ValueError
    return members


STRICTLY: dict[str, Any] = {"object_pairs_hook": _unique, "parse_int": _number(int, 20)}
STRICTLY |= {"parse_float": _number(float, 40), "parse_constant": _number(float, 0)}


def read_json(body: bytes) -> Any:
    """Strict JSON: what two parsers could read differently is refused, never repaired."""
    try:
        # Those inside strings are passed over; counted before parsing, so that no depth can overflow the stack.
        brackets = re.findall(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|([][{}])', text := body.decode(), re.DOTALL)
        deepest = max(accumulate(1 if one in "[{" else -1 for one in brackets if one), default=0)
        value = json.loads(text if deepest <= 32 else "", **STRICTLY)
        to_json(value).encode()  # which an unpaired surrogate cannot be
    except ValueError:
        raise invalid(("", "must be strict JSON")) from None
    return value


def read_key(values: list[str]) -> str:
    """One key, bare or quoted."""
    if not values:
        raise Refused("idempotency-key-missing")
    if len(values) > 1 or not (found := re.fullmatch(rf'("?)({KEY})\1', values[0])):
        raise Refused("idempotency-key-invalid")
    return found[2]


def read_not_after(values: list[str]) -> datetime:
    """One moment in UTC; digits beyond the sixth are cut off, so that it never moves later."""
    try:
        *parts, fraction = re.fullmatch(MOMENT, ",".join(values), re.ASCII).groups("")  # type: ignore[union-attr]
        return datetime(*map(int, parts), int(fraction[:6].ljust(6, "0")), tzinfo=UTC)  # type: ignore[misc, arg-type]
    except (AttributeError, ValueError):
        raise invalid(("Effect-Not-After", "must be one moment of RFC 3339 in UTC")) from None


def read_supersedes(values: list[str], own: str) -> list[str]:
    """The keys of former generations, newest first."""
    found = [re.fullmatch(rf'[ \t]*("?)({KEY})\1[ \t]*', one) for one in ",".join(values).split(",") if values]
    keys = [match[2] for match in found if match]
    if len(set(keys)) < len(found) or len(keys) > 16 or own in keys:
        raise invalid(("Effect-Supersedes", "must list at most 16 different keys of former generations"))
    generations = {key: re.findall(r"-g([1-9][0-9]{0,8})$", key) for key in keys}
    return sorted(keys, key=lambda key: -int(*generations[key]))  # without a generation: 0, which comes last


def read_query(text: str, grammar: Mapping[str, str]) -> dict[str, str]:
    """The parameters, each at most once, none that is unknown."""
    found = dict(pairs := parse_qsl(text, keep_blank_values=True))
    nothing = "(?!)"
    wrong = [name for name, value in found.items() if [*faults(value, grammar.get(name, nothing))]]
    if wrong or len(found) < len(pairs):
        raise invalid(*((name, "is unknown or not valid") for name in wrong or found))
    return found


class Receipt(NamedTuple):
    """What became of a key: its text, the body that its call is answered with, and its members."""

    text: str
    answer: str
    members: dict[str, Any]


class Inventory:
    """One tenant's stock, reservations and receipts."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, timeout=2, isolation_level=None, check_same_thread=False)
        self._db.executescript(SCHEMA)
        self._db.row_factory = sqlite3.Row
        self._now = datetime.now(UTC)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that one request reads and writes, at one moment."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            raise Refused("request-in-progress", "Nothing was done. Send it again.") from None
        try:
            self._now = datetime.now(UTC)
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def call(
        self, kind: str, ids: list[str], *, key: str, request: dict[str, Any], not_after: datetime, former: list[str]
    ) -> Answer:
        """Decide what becomes of a key, or say again what became of it."""
        fingerprint = sha256(["cf-fp1", f"inventory.{kind}", {"id": ids[0]} if ids else {}, request])
        if known := self._find(key):
            if known.members["outcome"] != "voided" and known.members["fingerprint"] != fingerprint:
                raise Refused("idempotency-key-reused")
            return Answer(known.members["http_status"], known.answer, known.members["outcome"], replayed=True)
        if self._now > not_after:
            raise Refused("not-after-passed")
        self.expire()
        old = self.reservation(*ids) if ids else None
        closed = [self._find(one) or self._close(one, "superseded") for one in former]
        standing = next((one for one in closed if self._stands(one.members)), None)
        state = old["state"] if old else "hold" if request.get("hold_seconds") else ""
        lines = Counter[str]()
        for line in old["lines"] if old else request.get("lines", [request]):
            lines[line["sku"]] += line["quantity"]
        told: dict[str, Any] = {"request": request, "supersedes": former}
        told |= {"fingerprint": fingerprint, "fingerprint_version": "cf-fp1"}
        if reason := self._refusal(kind, state, lines, standing):
            told |= {"reason": reason, "reservation_id": old and old["reservation_id"], "http_status": 409}
            lines = Counter() if old and standing else lines
            made = self._write(key, f"inventory.{kind}", "rejected", lines, told, standing=standing)
        else:
            made = self._commit(key, kind, state, lines, reservation=old or dict.fromkeys(RESERVATION), told=told)
        return Answer(made.members["http_status"], made.answer, made.members["outcome"])

    def void(self, key: str) -> Answer:
        """Close a key, or say what it came to."""
        known = self._find(key)
        receipt = known or self._close(key, "voided")
        return Answer(200, receipt.text, receipt.members["outcome"], replayed=known is not None)

    def expire(self) -> None:
        """Give back what is held beyond its time."""
        due = self._db.execute("SELECT document FROM reservations WHERE due <= ? ORDER BY due", (stamp(self._now),))
        for (document,) in due.fetchall():
            held = json.loads(document)
            lines = {line["sku"]: line["quantity"] for line in held["lines"]}
            self._commit(f"{held['key']}@expiry", "expiry", "held", lines, reservation=held, told={})

    def _refusal(self, kind: str, state: str, lines: Mapping[str, int], standing: Receipt | None) -> str | None:
        if standing:
            return "predecessor-committed"
        if (kind, state) not in MOVES:
            return "hold-expired" if state == "expired" else "invalid-transition"
        stocks = [(self._balances(sku), quantity) for sku, quantity in lines.items() if kind == "reserve"]
        if not all(stock["version"] for stock, _ in stocks):
            return "unknown-sku"
        return "insufficient-stock" if any(stock["available"] < quantity for stock, quantity in stocks) else None

    def _stands(self, receipt: Mapping[str, Any]) -> bool:
        if receipt["outcome"] == "committed" and receipt["kind"] in {"inventory.reserve", "inventory.confirm"}:
            return self.reservation(receipt["reservation_id"])["state"] in {"held", "consumed"}
        return bool(receipt["outcome"] == "committed")

    def _commit(
        self, key: str, kind: str, state: str, lines: Mapping[str, int], *, reservation: Any, told: dict[str, Any]
    ) -> Receipt:
        movement, signs, after = MOVES[kind, state]
        receipt_id, now = f"receipt-{uuid.uuid4()}", stamp(self._now)
        if kind == "reserve":
            hold = told["request"].get("hold_seconds")
            told["expires_at"] = hold and stamp(self._now + timedelta(seconds=hold))
            reservation |= {"reservation_id": f"reservation-{uuid.uuid4()}", "expires_at": told["expires_at"]}
            reservation["lines"] = [{"sku": sku, "quantity": lines[sku]} for sku in sorted(lines)]
            reservation["reference"] = told["request"].get("reference")
        versions = {sku: self._balances(sku)["version"] + 1 for sku in sorted(lines)}
        for sku, version in versions.items():
            moved = (sku, version, movement, lines[sku], *(sign * lines[sku] for sign in signs))
            row = (*moved, key, receipt_id, reservation["reservation_id"], now)
            self._db.execute("INSERT INTO movements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        if after:
            reservation |= {"state": after, **dict(zip(MARKS[kind], (receipt_id, now, key), strict=False))}
            due = reservation["expires_at"] if after == "held" else None
            kept = reservation["reservation_id"], due, to_json(reservation)
            self._db.execute("REPLACE INTO reservations VALUES (?, ?, ?)", kept)
        told |= {"receipt_id": receipt_id, "reservation_id": reservation["reservation_id"], "stock_versions": versions}
        told["http_status"] = 201 if kind in {"reserve", "deliver"} else 200
        if kind == "expiry":
            return self._write(key, kind, "committed", lines, told, reference=reservation["reference"])
        return self._write(key, f"inventory.{kind}", "committed", lines, told)

    def _close(self, key: str, reason: str) -> Receipt:
        return self._write(key, "void", "voided", {}, {"reason": reason, "http_status": 410})

    def _write(
        self, key: str, kind: str, outcome: str, lines: Mapping[str, int], told: dict[str, Any], *,
        standing: Receipt | None = None, reference: str | None = None,
    ) -> Receipt:  # fmt: skip
        granted = outcome == "committed"
        receipt: dict[str, Any] = {
            "schema_version": 1, "receipt_id": f"receipt-{uuid.uuid4()}", "sequence": self._watermark() + 1, "key": key,
            "kind": kind, "outcome": outcome, "reason": None, "request": None, "fingerprint": None,
            "fingerprint_version": None, "supersedes": [], "reservation_id": None,
            "lines": [{"sku": sku, "requested": n, "granted": n * granted} for sku, n in sorted(lines.items())],
            "stock_versions": {}, "expires_at": None, "http_status": None, "created_at": stamp(self._now),
            "signature": None,
        } | told  # fmt: skip
        text = answer = to_json(receipt)
        if not granted:
            shown = {"predecessor": standing.text} if standing else {}
            answer = problem("key-voided" if outcome == "voided" else receipt["reason"], **shown, receipt=text)
        digits = hashlib.sha256(key.encode()).hexdigest()[:4]
        item = sha256(["cf-rd1", key, outcome, receipt["receipt_id"]])
        reference = reference or (receipt["request"] or {}).get("reference")
        row = receipt["sequence"], key, reference, digits, item, text, answer
        self._db.execute("INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return Receipt(text, answer, receipt)

    def _find(self, key: str) -> Receipt | None:
        row = self._db.execute("SELECT text, answer FROM receipts WHERE key = ?", (key,)).fetchone()
        return Receipt(row["text"], row["answer"], json.loads(row["text"])) if row else None

    def _watermark(self) -> int:
        return int(self._db.execute("SELECT coalesce(max(sequence), 0) FROM receipts").fetchone()[0])

    def _balances(self, sku: str) -> dict[str, Any]:
        query = """SELECT ? AS sku, coalesce(sum(received), 0) AS received, coalesce(sum(available), 0) AS available,
            coalesce(sum(held), 0) AS held, coalesce(sum(consumed), 0) AS consumed, count(*) AS version
            FROM movements WHERE sku = ?"""
        return dict(self._db.execute(query, (sku, sku)).fetchone())

    def reservation(self, name: str) -> dict[str, Any]:
        """Where its units are now."""
        row = self._db.execute("SELECT document FROM reservations WHERE id = ?", (name,)).fetchone()
        if not row:
            raise Refused("reservation-not-found")
        return dict(json.loads(row["document"]))

    def stock(self, sku: str) -> dict[str, Any]:
        """A SKU's balances, which are the sums of its movements."""
        if not (balances := self._balances(sku))["version"]:
            raise Refused("sku-not-found")
        return balances

    def ledger(self, sku: str, after_version: str = "0") -> dict[str, Any]:
        """A SKU's movements."""
        version = self.stock(sku)["version"]
        query = "SELECT * FROM movements WHERE sku = ? AND version > ? ORDER BY version LIMIT 1000"
        movements = [dict(row) for row in self._db.execute(query, (sku, int(after_version)))]
        last = movements[-1]["version"] if movements else version
        return {"sku": sku, "movements": movements, "next_after_version": last, "version": version}

    def receipt(self, key: str) -> Answer:
        """What became of a key, if that is known."""
        if known := self._find(key):
            return Answer(200, known.text, known.members["outcome"])
        raise Refused("receipt-not-found", observed_at=to_json(stamp(self._now)), watermark=to_json(self._watermark()))

    def lookup(self, keys: list[str]) -> Answer:
        """What became of many keys, at one moment."""
        found = {key: self._find(key) for key in keys}
        receipts = ",".join(f'"{key}":{known.text if known else "null"}' for key, known in found.items())
        rest = {"observed_at": stamp(self._now), "watermark": self._watermark()}
        return Answer(200, f'{{"receipts":{{{receipts}}},{to_json(rest)[1:]}')

    def feed(self, after: str = "0", limit: str = "100", reference: str = "", sku: str = "") -> Answer:
        """Receipts in the order of commits."""
        query = """SELECT sequence, text FROM receipts WHERE sequence > :after AND :reference IN ('', reference)
            AND (:sku = '' OR :sku IN (SELECT json_extract(value, '$.sku') FROM json_each(text, '$.lines')))
            ORDER BY sequence LIMIT :limit"""
        told = {"after": int(after), "limit": int(limit), "reference": reference, "sku": sku}
        rows, watermark = self._db.execute(query, told).fetchall(), self._watermark()
        last = rows[-1]["sequence"] if len(rows) == int(limit) else max(int(after), watermark)
        rest = to_json({"next_after": last, "watermark": watermark})
        return Answer(200, f'{{"receipts":[{",".join(row["text"] for row in rows)}],{rest[1:]}')

    def digests(self, prefix: str = "") -> dict[str, Any]:
        """Counts and digests of ranges of keys."""
        query = "SELECT digits, item, text FROM receipts WHERE substr(digits, 1, ?) = ? ORDER BY sequence"
        rows = self._db.execute(query, (len(prefix), prefix)).fetchall()
        below = sorted({row["digits"][: len(prefix) + 2] for row in rows}) if len(prefix) < 4 else []
        receipts = [json.loads(row["text"]) for row in rows if len(prefix) == 4]

        def summed(prefix: str) -> dict[str, Any]:
            items = [int(row["item"], 16) for row in rows if row["digits"].startswith(prefix)]
            return {"prefix": prefix, "count": len(items), "digest": f"{sum(items) % 2**256:064x}"}

        return summed(prefix) | {
            "ranges": [summed(one) for one in below],
            "receipts": [{name: one[name] for name in ("key", "outcome", "receipt_id")} for one in receipts],
            "watermark": self._watermark(),
        }


GARBLED = invalid(("", "is no HTTP/1.1 or 1.0, or its head is too long")).answer
PATHS: dict[str, Any] = {re.sub(r"\(.*?\)", "{id}", path): {route[0].lower(): {}} for path, route in ROUTES.items()}
OPENAPI = {"openapi": "3.1.0", "info": {"title": "The keyed-effect contract", "version": "1"}, "paths": PATHS}
Tokens = Mapping[str, tuple[Inventory, bool]]  # whose it is, and may it write


class Service:
    """The contract over HTTP, as an ASGI application."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def expire_every_second(self) -> None:
        """Give back what is held beyond its time, also if nobody asks."""
        asyncio.get_running_loop().call_later(1, self.expire_every_second)
        for inventory in {inventory for inventory, _ in self._tokens.values()}:
            with suppress(Refused), inventory.transaction():
                inventory.expire()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request: read to its end, answered, and never executed if it breaks off."""
        body, more = bytearray(), True
        while more and len(body) <= LONGEST_READ:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        size = len(path + query) + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        garbled = size > LONGEST_HEAD or len(scope["headers"]) > MOST_HEADERS or scope["http_version"][:2] != "1."
        garbled |= {"content-length", "transfer-encoding"} <= headers.keys()
        try:
            answer = GARBLED if garbled else self._answer(scope["method"], path, query, headers, bytes(body))
        except Refused as refused:
            answer = refused.answer
        except Exception:
            logging.getLogger(__name__).exception("A request failed.")
            answer = Answer(500, problem("internal", "What became of the request is unknown."))
        sent = headers_of(answer, close=more or garbled, request_id=headers.get("x-request-id", [""])[0])
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": answer.body.encode()})

    def _answer(self, method: str, path: str, query: str, headers: dict[str, list[str]], body: bytes) -> Answer:
        inventory, may_write = self._access(path, headers.get("authorization", []))
        lookup = path == "/v1/receipts/lookup"
        if inventory and not may_write and method != "GET" and not lookup:
            raise Refused("forbidden")
        if len(body) > (LONGEST_LOOKUP if lookup else LONGEST_BODY):
            raise Refused("payload-too-large")
        matches = ((re.fullmatch(pattern, path), route) for pattern, route in ROUTES.items())
        found, (allowed, name, grammar) = next((one for one in matches if one[0]), (None, ("", "", {})))
        if not found:
            raise Refused("not-found")
        if method != allowed:
            raise Refused("method-not-allowed")
        if not inventory:
            return Answer(200, to_json(OPENAPI if name == "openapi" else {"status": name}))
        keyed = name in SHAPES and not lookup
        ids = [unquote(one) for one in found.groups()]
        key = read_key(headers.get("idempotency-key", [])) if keyed else ""
        if name in {"receipt", "void"} and not re.fullmatch(KEY + "(@expiry)?" * (name == "receipt"), ids[0]):
            raise Refused("idempotency-key-invalid")
        parameters: dict[str, Any] = {**read_query(query, grammar)} if grammar else {}
        request = read_json(body) if name in SHAPES or (name == "void" and body) else {}
        if wrong := [*faults(request, SHAPES.get(name, {}))]:
            raise invalid(*wrong)
        if keyed:
            parameters = {"key": key, "not_after": read_not_after(headers.get("effect-not-after", []))}
            parameters["former"] = read_supersedes(headers.get("effect-supersedes", []), key)
            parameters["request"] = {member: value for member, value in request.items() if value is not None}
        with inventory.transaction():
            if keyed:
                return inventory.call(name, ids, **parameters)
            answer = getattr(inventory, name)(*ids, **parameters, **request)
            return answer if isinstance(answer, Answer) else Answer(200, to_json(answer))

    def _access(self, path: str, values: list[str]) -> tuple[Inventory | None, bool]:
        if not re.match("/v1(/|$)", path):
            return None, False
        found = re.fullmatch(r"(?i:bearer) +(\S+)", values[0]) if len(values) == 1 else None
        if not found or found[1] not in self._tokens:
            raise Refused("unauthorized")
        return self._tokens[found[1]]


def headers_of(answer: Answer, *, close: bool, request_id: str = "") -> list[tuple[bytes, bytes]]:
    """What every answer says of itself."""
    headers = {
        "content-type": "application/json" if answer.status < 400 else "application/problem+json",
        "content-length": len(answer.body.encode()),
        "receipt-outcome": answer.outcome,
        "idempotency-replayed": to_json(answer.replayed),
        "cache-control": "no-store",
        "x-request-id": request_id if re.fullmatch("[A-Za-z0-9._~-]{1,128}", request_id) else uuid.uuid4(),
    }
    headers |= {"www-authenticate": "Bearer"} if answer.status == 401 else {}
    headers |= {"retry-after": 1} if "/problems/request-in-progress" in answer.body[:99] else {}
    headers |= {"connection": "close"} if close else {}
    return [(name.encode(), str(value).encode()) for name, value in headers.items()]


class Protocol(H11Protocol):
    """HTTP, with a problem document for what is none."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - people read the problem's own words
        """Say so, and close."""
        head = h11.Response(status_code=400, headers=headers_of(GARBLED, close=True))
        for event in (head, h11.Data(data=GARBLED.body.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


@contextmanager
def served(tokens: Tokens, port: int = 0) -> Iterator[str]:
    """Serve in a thread, on a free port unless one is named; yields the URL."""
    service = Service(tokens)
    config = uvicorn.Config(service, http=Protocol, ws="none", lifespan="off", log_config=None, server_header=False)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", port), backlog=512)

    async def serve() -> None:
        service.expire_every_second()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token", default="development-only")
    options = parser.parse_args()
    with served({options.token: (Inventory("second_inventory.db"), True)}, options.port):
        threading.Event().wait()
