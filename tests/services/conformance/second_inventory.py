"""The provider's side of docs/effects-api.md in one file, written from that page alone. Copy it.

All that is stored is a log of receipts, one for each tenant; all else is a fold over it, in memory. A call is judged
against memory, its receipts are committed in one transaction, and memory learns of them from the log alone. Left out:
retention, signatures, figures; and, as its server's part, limits of heads and time, `100 Continue`, garbage and 500.
"""

import hashlib
import json
import re
import sqlite3
import uuid
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import rfc8785
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

Document = dict[str, Any]
STAMP, MOMENT = "%Y-%m-%dT%H:%M:%S.%fZ", "[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}([.][0-9]{1,9})?(Z|[+]00:00)"
KEY, SKU, TEXT = "[A-Za-z0-9._~:-]{16,128}", "[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}", r"[^\0\ud800-\udfff]+"
NUMBER, QUOTED, LINE = "0|[1-9][0-9]{0,17}", f'{KEY}|"{KEY}"', {"sku": SKU, "quantity": 1_000_000_000}
# Shapes: the grammar of a text, the largest integer, (items, how many), [what may be null or absent], {members}.
FEED = {"after": [NUMBER], "limit": ["[1-9][0-9]{0,2}|1000"], "reference": [TEXT], "sku": [TEXT]}
CALLS: dict[str, tuple[str, Any]] = {  # by the last step of their paths
    "reservations": ("reserve", {"lines": (LINE, 100), "hold_seconds": [31_536_000], "reference": [TEXT]}),
    "deliveries": ("deliver", LINE), "confirm": ("confirm", {}), "release": ("release", {"reason": [TEXT]}),
}  # fmt: skip
PATHS = {
    "/livez|/readyz|/v1/receipts|/v1/receipts/(?!lookup$)[^/]+|/v1/(reservations|stock|ledger)/[^/]+": "GET, HEAD",
    "/v1/receipts/lookup|/v1/deliveries|/v1/reservations|/v1/reservations/[^/]+/(confirm|release)": "POST",
    "/v1/receipts/[^/]+/void": "PUT",
}
CAUSE, AMOUNTS = ("receipt_id", "created_at", "key", "reservation_id"), ("received", "available", "held", "consumed")
MOVES = {  # what is done, and to what: the movement, from where and to where its units go, and what that is afterwards
    ("deliver", "new"): ("delivery", None, "available", "new"),
    ("reserve", "new"): ("reserve", "available", "consumed", "consumed"),
    ("reserve", "hold"): ("hold", "available", "held", "held"),
    ("confirm", "held"): ("confirm", "held", "consumed", "consumed"),
    ("release", "held"): ("release", "held", "available", "released"),
    ("release", "consumed"): ("release", "consumed", "available", "released"),
    ("expiry", "held"): ("expiry", "held", "available", "expired"),
}
MARKS = {  # where a reservation says by which receipt, when, and under which key
    "reserve": ("receipt_id", "created_at", "key"), "confirm": ("confirm_receipt_id", "confirmed_at", "confirm_key"),
    "release": ("release_receipt_id", "released_at", "release_key"), "expiry": ("expiry_receipt_id", "expired_at"),
}  # fmt: skip


class Problem(Exception):
    """What is answered from 400 on. Where it is raised, nothing is stored."""

    def __init__(self, status: int, name: str, **members: Any) -> None:
        title, detail = name.replace("-", " ").capitalize(), "Nothing was done."
        self.document = {"type": f"/problems/{name}", "title": title, "status": status, "detail": detail} | members


def refuse(applies: object, status: int = 400, name: str = "validation-failed", at: str = "", **more: Any) -> None:
    """The first problem that applies is the answer; of what is not valid it says where that is."""
    if applies:
        more |= {"errors": [{"at": at, "message": "is not valid"}]} if name == "validation-failed" else {}
        raise Problem(status, name, **more)


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape; nothing is coerced."""
    match shape:
        case str():
            return isinstance(value, str) and bool(re.fullmatch(shape, value)) and len(value.encode()) <= 512
        case int():
            return type(value) is int and 1 <= value <= shape
        case [inner]:
            return value is None or fits(value, inner)
        case [inner, most]:
            return isinstance(value, list) and 1 <= len(value) <= most and all(fits(one, inner) for one in value)
    return isinstance(value, dict) and {*value} <= {*shape} and all(fits(value.get(one), shape[one]) for one in shape)


def read_json(body: bytes, shape: Any) -> Document:
    """Strictly: what two parsers could read differently is refused, never repaired."""
    value: Any = None
    with suppress(ValueError, RecursionError):  # an object that has a member twice becomes what has no shape
        value = json.loads(body.decode(), object_pairs_hook=lambda it: dict(it) if len(dict(it)) == len(it) else ...)
    refuse(not fits(value, shape))
    return {name: member for name, member in value.items() if member is not None}


def read_query(asked: Request, shape: Any) -> dict[str, str]:
    """What is known, and each of it once."""
    for name, value in asked.query_params.multi_items():
        refuse(name not in shape or len(asked.query_params.getlist(name)) > 1, at="query")
        refuse(not fits(value, shape[name]), at=name)
    return dict(asked.query_params)


class Inventory:
    """One tenant's log, and what it comes to."""

    def __init__(self, path: str) -> None:
        self._log = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._log.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        self._log.execute("CREATE TABLE IF NOT EXISTS log (sequence INTEGER PRIMARY KEY, key UNIQUE, receipt, answer)")
        self._known: dict[str, list[Document]] = {}  # by key: the receipt, and what its call is answered with
        self._undone: set[str | None] = set()  # the keys of what was given back
        self._reservations: dict[str | None, Document] = defaultdict(dict)
        self._ledgers: dict[str, list[Document]] = defaultdict(list)
        self._ranges: dict[str, list[Document]] = defaultdict(list)

    def begin(self) -> sqlite3.Connection:
        """Start a transaction, at one moment at which all of the log is known; the connection ends it."""
        self._log.execute("BEGIN IMMEDIATE")
        self._now = datetime.now(UTC)
        rows = self._log.execute("SELECT receipt, answer FROM log WHERE sequence > ?", (len(self._known),))
        for receipt, answer in (map(json.loads, row) for row in rows):
            self._known[receipt["key"]] = [receipt, answer]
            digits = hashlib.sha256(receipt["key"].encode()).hexdigest()
            for prefix in ("", digits[:2], digits[:4]):
                self._ranges[prefix].append({name: receipt[name] for name in ("key", "outcome", "receipt_id")})
            if receipt["outcome"] == "committed":
                self._move(receipt, receipt["kind"].removeprefix("inventory."))
        return self._log

    def _move(self, receipt: Document, kind: str) -> None:
        cause, lines = {name: receipt[name] for name in CAUSE}, {one["sku"]: one["granted"] for one in receipt["lines"]}
        old = self._reservations[receipt["reservation_id"]]  # that of the deliveries has no name
        if kind == "reserve":
            old |= dict.fromkeys(mark for marks in MARKS.values() for mark in marks) | cause
            old |= {"reference": receipt["request"].get("reference"), "expires_at": receipt["expires_at"]}
            old |= {"lines": [{"sku": sku, "quantity": quantity} for sku, quantity in lines.items()]}
        state = old.get("state", "hold" if receipt["expires_at"] else "new")
        movement, source, target, old["state"] = MOVES[kind, state]
        old |= dict(zip(MARKS.get(kind, ()), cause.values(), strict=False))
        self._undone |= {old[mark] for mark in ("key", "confirm_key") if old["state"] in {"released", "expired"}}
        for sku, quantity in lines.items():
            moved = {"version": len(self._ledgers[sku]) + 1, "sku": sku, "kind": movement, "quantity": quantity}
            amounts = {target: quantity, source or "received": -quantity if source else quantity}
            self._ledgers[sku].append(moved | dict.fromkeys(AMOUNTS, 0) | amounts | cause)

    def _write(self, key: str, kind: str, status: int, lines: dict[str, int], **told: Any) -> list[Document]:
        granted, name = status < 400, "key-voided" if status == 410 else told.get("reason", "")
        shown = told.pop("shown", {})
        receipt = {
            "schema_version": 1, "receipt_id": f"receipt-{uuid.uuid4()}", "key": key, "kind": kind,
            "sequence": self._log.execute("SELECT coalesce(max(sequence), 0) + 1 FROM log").fetchone()[0],
            "outcome": {409: "rejected", 410: "voided"}.get(status, "committed"), "reason": None, "request": None,
            "fingerprint": None, "fingerprint_version": "cf-fp1" if "fingerprint" in told else None, "supersedes": [],
            "lines": [{"sku": sku, "requested": n, "granted": n * granted} for sku, n in sorted(lines.items())],
            "stock_versions": {sku: len(self._ledgers[sku]) + 1 for sku in lines if granted}, "reservation_id": None,
            "expires_at": None, "http_status": status, "created_at": f"{self._now:{STAMP}}", "signature": None,
        } | told  # fmt: skip
        written = [receipt, receipt if granted else Problem(status, name, receipt=receipt, **shown).document]
        self._log.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (receipt["sequence"], key, *map(json.dumps, written)))
        return written

    def expire(self) -> None:
        """Give back what is held beyond its time, each on its own; to be called about once a second, too."""
        with self.begin():
            held = {name: one for name, one in self._reservations.items() if one["state"] == "held"}
        for name, hold in held.items():
            if hold["expires_at"] <= f"{self._now:{STAMP}}":
                with self.begin():
                    lines = {line["sku"]: line["quantity"] for line in hold["lines"]}
                    self._write(f"{hold['key']}@expiry", "expiry", 200, lines, reservation_id=name)

    def _call(self, kind: str, shape: Any, name: str, asked: Request, body: bytes) -> tuple[Document, bool]:
        keys, moments, lists = map(asked.headers.getlist, ("idempotency-key", "effect-not-after", "effect-supersedes"))
        refuse(not fits(keys, (QUOTED, 1)), 400, f"idempotency-key-{'invalid' if keys else 'missing'}")
        key, request = keys[0].strip('"'), read_json(body, shape)
        not_after, moment = None, ",".join(moments).upper()
        with suppress(ValueError):
            not_after = datetime.fromisoformat(moment)
        refuse(not not_after or not re.fullmatch(MOMENT, moment), at="Effect-Not-After")
        listed = [one.strip(" \t") for one in ",".join(lists).split(",")] if lists else None
        former = [*dict.fromkeys(one.strip('"') for one in listed or [])]
        refuse(not fits(listed, [(QUOTED, 16)]) or key in former, at="Effect-Supersedes")
        former.sort(key=lambda one: int((re.findall("-g([1-9][0-9]{0,8})$", one) or [0])[0]), reverse=True)
        fingerprinted: Any = ["cf-fp1", f"inventory.{kind}", {"id": name} if name else {}, request]
        fingerprint = hashlib.sha256(rfc8785.dumps(fingerprinted)).hexdigest()
        if known := self._known.get(key):
            refuse(known[0]["fingerprint"] not in {fingerprint, None}, 422, "idempotency-key-reused")
            return known[1], True
        refuse(not_after and self._now > not_after, 412, "not-after-passed")
        refuse(name and name not in self._reservations, 404, "reservation-not-found")
        new = {"state": "hold" if "hold_seconds" in request else "new", "lines": request.get("lines", [request])}
        old = self._reservations[name] if name else new
        lines = sum((Counter({line["sku"]: line["quantity"]}) for line in old["lines"]), Counter[str]())
        had, left = ({sku: sum(one[at] for one in self._ledgers.get(sku, [])) for sku in lines} for at in AMOUNTS[:2])
        refuse(kind == "deliver" and sum(had.values()) + lines.total() >= 2**53, at="/quantity")
        closed = [self._known.get(one) or self._write(one, "void", 410, {}, reason="superseded") for one in former]
        standing = [one for one, _ in closed if one["outcome"] == "committed" and one["key"] not in self._undone]
        refusals = {
            "predecessor-committed": standing,
            "hold-expired": old["state"] == "expired",
            "invalid-transition": (kind, old["state"]) not in MOVES,
            "unknown-sku": kind == "reserve" and lines.keys() - self._ledgers.keys(),
            "insufficient-stock": kind == "reserve" and any(left[sku] < lines[sku] for sku in lines),
        }
        reason = next((reason for reason, applies in refusals.items() if applies), None)
        told: Document = {"request": request, "fingerprint": fingerprint, "supersedes": former, "reason": reason}
        told |= {"reservation_id": name or None, "shown": {"predecessor": standing[0]} if standing else {}}
        if kind == "reserve" and not reason:
            told["reservation_id"] = f"reservation-{uuid.uuid4()}"
            hold = timedelta(seconds=request.get("hold_seconds", 0))
            told["expires_at"] = f"{self._now + hold:{STAMP}}" if hold else None
        return self._write(key, f"inventory.{kind}", 409 if reason else 200 if name else 201, lines, **told)[1], False

    def answer(self, asked: Request, steps: list[str], body: bytes) -> tuple[Document, bool]:
        """What is asked for, and whether an earlier request earned it."""
        seen: Document = {"watermark": len(self._known), "observed_at": f"{self._now:{STAMP}}"}
        match steps:
            case ["reservations" | "deliveries" as step] | ["reservations", _, "confirm" | "release" as step]:
                return self._call(*CALLS[step], "".join(steps[1:2]), asked, body)
            case ["receipts", key, "void"]:
                refuse(not re.fullmatch(KEY, key), 400, "idempotency-key-invalid")
                read_json(body or b"{}", {})
                known = self._known.get(key)
                return (known or self._write(key, "void", 410, {}, reason="voided"))[0], known is not None
            case ["receipts", "lookup"]:
                keys = read_json(body, {"keys": (f"{KEY}(@expiry)?", 500)})["keys"]
                return {"receipts": {key: self._known.get(key, [None])[0] for key in keys}} | seen, False
            case ["receipts", "digests"]:
                prefix = read_query(asked, {"prefix": ["([0-9a-f]{2}){0,2}"]}).get("prefix", "")
                ranges = [self._digest(one) for one in sorted(self._ranges) if re.fullmatch(f"{prefix}..", one)]
                listed = self._ranges.get(prefix, []) if len(prefix) == 4 else []
                below = {"ranges": ranges, "receipts": listed, "watermark": len(self._known)}
                return self._digest(prefix) | below, False
            case ["receipts"]:
                query, found = read_query(asked, FEED), []
                after, limit = int(query.get("after", 0)), int(query.get("limit", 100))
                for receipt, _ in [*self._known.values()][after:]:
                    request = self._known[receipt["key"].removesuffix("@expiry")][0]["request"] or {}
                    skus = [line["sku"] for line in receipt["lines"]]
                    if query.get("reference") in {None, request.get("reference")} and query.get("sku") in {None, *skus}:
                        found.append(receipt)
                last = found[limit - 1]["sequence"] if len(found) >= limit else max(after, len(self._known))
                return {"receipts": found[:limit], "next_after": last, "watermark": len(self._known)}, False
            case ["receipts", key]:
                refuse(not re.fullmatch(f"{KEY}(@expiry)?", key), 400, "idempotency-key-invalid")
                refuse(key not in self._known, 404, "receipt-not-found", **seen)
                return self._known[key][0], False
            case ["reservations", name]:
                refuse(name not in self._reservations, 404, "reservation-not-found")
                return self._reservations[name], False
            case ["stock", sku] if sku in self._ledgers:
                sums = {amount: sum(moved[amount] for moved in self._ledgers[sku]) for amount in AMOUNTS}
                return {"sku": sku, "version": len(self._ledgers[sku])} | sums, False
            case ["ledger", sku]:
                after = int(read_query(asked, {"after_version": [NUMBER]}).get("after_version", 0))
                if ledger := self._ledgers.get(sku):
                    last, page = max(after, min(after + 1000, len(ledger))), ledger[after : after + 1000]
                    return {"sku": sku, "movements": page, "next_after_version": last, "version": len(ledger)}, False
        raise Problem(404, "sku-not-found")

    def _digest(self, prefix: str) -> Document:
        values = [["cf-rd1", *receipt.values()] for receipt in self._ranges.get(prefix, [])]
        total = sum(int(hashlib.sha256(rfc8785.dumps(value)).hexdigest(), 16) for value in values) % 2**256
        return {"prefix": prefix, "count": len(values), "digest": f"{total:064x}"}


def application(tokens: dict[str, tuple[Inventory, bool]]) -> ASGIApp:
    """The contract over HTTP; a token says whose inventory is asked for, and whether it may be changed."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        asked, path, replayed = Request(scope, receive), scope["path"], False
        token = re.fullmatch(r"(?i:bearer) +(\S+)", ",".join(asked.headers.getlist("authorization")))
        inventory, may_write = tokens.get(token[1] if token else "", (None, False))
        private, lookup = re.match("/v1(/|$)", path), path == "/v1/receipts/lookup"
        allowed = next((PATHS[one] for one in PATHS if re.fullmatch(one, path)), "")
        try:
            body = await asked.body()
            refuse(private and not inventory, 401, "unauthorized")
            refuse(private and not may_write and asked.method not in {"GET", "HEAD"} and not lookup, 403, "forbidden")
            refuse(len(body) > (131_072 if lookup else 65_536), 413, "payload-too-large")
            refuse(not allowed, 404, "not-found")
            refuse(asked.method not in allowed.split(", "), 405, "method-not-allowed")
            document: Document = {"status": path.strip("/z")}  # live, ready
            if inventory and private:
                inventory.expire()
                with inventory.begin():
                    document, replayed = inventory.answer(asked, path.split("/")[2:], body)
        except ClientDisconnect:
            return  # what breaks off is not executed
        except Problem as problem:
            document = problem.document
        success = document.get("http_status", 200) if asked.method == "POST" else 200
        status = document["status"] if "type" in document else success
        names = asked.headers.getlist("x-request-id")
        headers = {
            "content-type": "application/json" if status < 400 else "application/problem+json",
            "receipt-outcome": document.get("receipt", document).get("outcome", "none"),
            "idempotency-replayed": str(replayed).lower(), "cache-control": "no-store",
            "x-request-id": names[0] if fits(names, ("[A-Za-z0-9._~-]{1,128}", 1)) else str(uuid.uuid4()),
        } | {401: {"www-authenticate": "Bearer"}, 405: {"allow": allowed}}.get(status, {})  # fmt: skip
        await JSONResponse(document, status, headers)(scope, receive, send)

    return respond
