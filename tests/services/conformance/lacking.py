"""Stands before the real inventory, over HTTP, and takes one capability away: the inventory knows nothing of it."""

import dataclasses
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import httpx
from starlette.types import Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Asked:
    """A request that has come in whole."""

    method: str
    path: str
    target: bytes  # path and query as they came
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The one header of that name; None for none or several."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None

    def with_header(self, name: bytes, value: bytes | None) -> "Asked":
        """The same with this header, or without."""
        kept = [(key, old) for key, old in self.headers if key != name]
        return dataclasses.replace(self, headers=[*kept, (name, value)] if value is not None else kept)


@dataclass(frozen=True)
class Answered:
    """An answer that has not gone out yet."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name."""
        return next((value for key, value in self.headers if key == name), None)

    def with_body(self, body: bytes) -> "Answered":
        """The same with another body."""
        headers = [(key, value) for key, value in self.headers if key != b"content-length"]
        return Answered(self.status, [*headers, (b"content-length", b"%d" % len(body))], body)


def refusal(status: int, name: str) -> Answered:
    """A problem document that keeps the contract."""
    problem = {"type": f"/problems/{name}", "title": name, "status": status, "detail": "This provider cannot do that."}
    if name == "validation-failed":
        problem["errors"] = []
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"receipt-outcome", b"none"),
        (b"idempotency-replayed", b"false"),
        (b"cache-control", b"no-store"),
        (b"x-request-id", secrets.token_hex().encode()),
    ]
    return Answered(status, headers, b"").with_body(json.dumps(problem).encode())


class Whole:
    """Takes nothing away; what stands before the inventory is built on it.

    Args:
        url: where the inventory answers.
    """

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._http: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request, have it answered, send the answer."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        answer = await self.answer(Asked(scope["method"], scope["path"], target, _own(scope["headers"]), body))
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with httpx.AsyncClient(trust_env=False, timeout=30) as self._http:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def answer(self, asked: Asked) -> Answered:
        """What is answered: here, what the inventory answers."""
        return await self.forward(asked)

    async def forward(self, asked: Asked) -> Answered:
        """Have the inventory answer."""
        assert self._http is not None
        url = self._url.copy_with(raw_path=asked.target)
        heard = await self._http.request(asked.method, url, headers=asked.headers, content=asked.body or None)
        return Answered(heard.status_code, _own(heard.headers.raw), b"").with_body(heard.content)


def _own(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without those of one connection."""
    hop = {b"host", b"connection", b"content-length", b"transfer-encoding"}
    return [(name.lower(), value) for name, value in headers if name.lower() not in hop]


class _Without(Whole):
    """Has not the paths that match."""

    method = ""
    path = ""

    async def answer(self, asked: Asked) -> Answered:
        """404, as for a path that there never was."""
        if asked.method in self.method.split() and re.fullmatch(self.path, asked.path):
            return refusal(404, "not-found")
        return await self.forward(asked)


class NoVoid(_Without):
    """Cannot close a key."""

    method, path = "PUT", "/v1/receipts/[^/]+/void"


class NoLookup(_Without):
    """Shows no receipt by its key."""

    method, path = "GET POST", "/v1/receipts/(?!digests$)[^/]+"


class NoFeed(_Without):
    """Lists nothing."""

    method, path = "GET", "/v1/receipts"


class NoDigests(_Without):
    """Has no digests."""

    method, path = "GET", "/v1/receipts/digests"


class NoHolds(Whole):
    """Takes units or does not, but holds none."""

    async def answer(self, asked: Asked) -> Answered:
        """Refuse the member and the call."""
        if asked.path.endswith("/confirm"):
            return refusal(404, "not-found")
        if re.search(rb'"hold_seconds":(?!null)', asked.body):
            return refusal(400, "validation-failed")
        return await self.forward(asked)


class NoNotAfter(Whole):
    """Executes what comes too late."""

    async def answer(self, asked: Asked) -> Answered:
        """Move every deadline of former years beyond all days."""
        deadline = asked.header(b"effect-not-after") or b""
        late = re.fullmatch(rb"2000(-.*Z)", deadline)
        return await self.forward(asked.with_header(b"effect-not-after", b"2999" + late[1]) if late else asked)


class NoSupersedes(Whole):
    """Hears nothing of former generations."""

    async def answer(self, asked: Asked) -> Answered:
        """Leave the header out."""
        return await self.forward(asked.with_header(b"effect-supersedes", None))


class Rewriting(Whole):
    """Sends a key on as a fresh one when `repeats` says so; the answer names the key that was asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.in_flight: list[str] = []
        self.outcomes: dict[str, str] = {}

    def repeats(self, key: str) -> bool:
        """Whether this key's request is to be executed once more."""
        raise NotImplementedError

    async def answer(self, asked: Asked) -> Answered:
        """Forward under the key, or under another of the same length."""
        key = (asked.header(b"idempotency-key") or b"").decode("latin-1").strip('"')
        if not re.fullmatch("[A-Za-z0-9._~:-]{16,128}", key):
            return await self.forward(asked)
        if self.repeats(key):
            other = secrets.token_hex(64)[: len(key)]
            answer = await self.forward(asked.with_header(b"idempotency-key", other.encode()))
            return answer.with_body(answer.body.replace(other.encode(), key.encode()))
        self.in_flight.append(key)
        try:
            answer = await self.forward(asked)
        finally:
            self.in_flight.remove(key)
        outcome = (answer.header(b"receipt-outcome") or b"").decode()
        if outcome != "none":
            self.outcomes[key] = outcome
        return answer


class NoDedupe(Rewriting):
    """Executes every repetition of what it has executed."""

    def repeats(self, key: str) -> bool:
        """Whatever is being executed or was."""
        return key in self.in_flight or self.outcomes.get(key) in {"committed", "rejected"}


class DedupeWithoutLock(Rewriting):
    """Looks first and acts then: two requests at once both find nothing."""

    def repeats(self, key: str) -> bool:
        """Only what is being executed."""
        return key in self.in_flight


class NoRejections(Rewriting):
    """Forgets that it refused."""

    def repeats(self, key: str) -> bool:
        """Whatever was refused."""
        return self.outcomes.get(key) == "rejected"


class VoidThatClosesNothing(Rewriting):
    """Makes the tombstone, and executes what comes later all the same."""

    def repeats(self, key: str) -> bool:
        """Whatever was closed by a void."""
        return self.outcomes.get(key) == "closed"

    async def answer(self, asked: Asked) -> Answered:
        """Remember what was closed."""
        answer = await super().answer(asked)
        if asked.method == "PUT" and answer.header(b"receipt-outcome") == b"voided":
            self.outcomes[asked.path.split("/")[3]] = "closed"
        return answer


class _WithoutLock(Rewriting):
    """Knows which keys are being executed, and takes that for nothing."""

    def repeats(self, key: str) -> bool:
        """Never: what it gets wrong is something else."""
        del key
        return False


class VoidWithoutLock(_WithoutLock):
    """Finds no receipt yet, and says that the key is closed."""

    async def answer(self, asked: Asked) -> Answered:
        """A tombstone of another key, under the name of this one."""
        key = asked.path.split("/")[3] if asked.method == "PUT" and asked.path.endswith("/void") else ""
        if key not in self.in_flight:
            return await super().answer(asked)
        other = secrets.token_hex(64)[: len(key)]
        answer = await self.forward(dataclasses.replace(asked, target=f"/v1/receipts/{other}/void".encode()))
        return answer.with_body(answer.body.replace(other.encode(), key.encode()))


class SupersedesWithoutLock(_WithoutLock):
    """Finds no receipt of a former generation yet, and goes on without closing its key."""

    async def answer(self, asked: Asked) -> Answered:
        """Leave the header out while a former generation is being executed."""
        older = (asked.header(b"effect-supersedes") or b"").decode("latin-1")
        racing = any(key.strip(' "') in self.in_flight for key in older.split(","))
        return await super().answer(asked.with_header(b"effect-supersedes", None) if racing else asked)


class NoReplay(Whole):
    """Makes a stored answer anew."""

    async def answer(self, asked: Asked) -> Answered:
        """Write the same members in another way."""
        answer = await self.forward(asked)
        if answer.header(b"idempotency-replayed") != b"true":
            return answer
        return answer.with_body(json.dumps(json.loads(answer.body), indent=1).encode())


class NoStrictness(Whole):
    """Takes the last of two members, and leaves out those that it does not know."""

    async def answer(self, asked: Asked) -> Answered:
        """Repair a delivery."""
        if asked.path != "/v1/deliveries":
            return await self.forward(asked)
        try:
            members = json.loads(asked.body)
            repaired = json.dumps({name: members[name] for name in ("sku", "quantity") if name in members})
        except (ValueError, TypeError, RecursionError):
            return await self.forward(asked)
        if len(asked.body) > len(repaired) + 40:
            return await self.forward(asked)
        return await self.forward(dataclasses.replace(asked, body=repaired.encode()))


class _Editing(Whole):
    """Changes the text of each answer's body and its headers."""

    body: tuple[bytes, bytes] = (b"", b"")
    header: bytes = b""

    async def answer(self, asked: Asked) -> Answered:
        """Edit it."""
        answer = await self.forward(asked)
        headers = [(key, value) for key, value in answer.headers if key != self.header]
        return dataclasses.replace(answer, headers=headers).with_body(answer.body.replace(*self.body))


class NoSchemaVersion(_Editing):
    """Leaves a member out of its receipts."""

    body = (b'"schema_version":1,', b"")


class NoCacheControl(_Editing):
    """Lets anything between keep its answers."""

    header = b"cache-control"


class NoLedgerKeys(_Editing):
    """Says in its reservations only where units are, not by what."""

    body = (b'"release_key":', b'"released_by":')


class NoRequestId(Whole):
    """Gives every request an id of its own."""

    async def answer(self, asked: Asked) -> Answered:
        """Leave the caller's out."""
        return await self.forward(asked.with_header(b"x-request-id", None))


class PlusIsPlus(Whole):
    """Decodes a query as a path is decoded."""

    async def answer(self, asked: Asked) -> Answered:
        """Let no plus be a blank."""
        return await self.forward(dataclasses.replace(asked, target=asked.target.replace(b"+", b"%2B")))


class NoAllow(_Editing):
    """Does not say what a path takes."""

    header = b"allow"


class LedgerThatStartsOver(_Editing):
    """After the end it sends its reader to the beginning."""

    body = (b'"movements":[],"next_after_version":4', b'"movements":[],"next_after_version":0')


class _Restating(Whole):
    """Changes an answer's text where it matches."""

    pattern: tuple[bytes, bytes] = (b"", b"")

    async def answer(self, asked: Asked) -> Answered:
        """Restate it."""
        answer = await self.forward(asked)
        return answer.with_body(re.sub(*self.pattern, answer.body))


class NamelessRefusals(_Restating):
    """Refuses a move before it knows what would have been moved."""

    pattern = (
        rb'("reason":"predecessor-committed".*"reservation_id":)"[^"]+","lines":\[[^]]*\]',
        rb'\1null,"lines":[]',
    )


class OneExpiryForAll(_Restating):
    """Ends holds as one movement."""

    pattern = (rb'("kind":"expiry".*"stock_versions":\{"[^"]+":)[0-9]+', rb"\g<1>5")


class ReusedIsReplayed(Whole):
    """Takes every stored receipt for what earned the answer."""

    async def answer(self, asked: Asked) -> Answered:
        """Say so of a 422."""
        answer = await self.forward(asked)
        if answer.status != 422:
            return answer
        headers = [(key, b"true" if key == b"idempotency-replayed" else value) for key, value in answer.headers]
        return dataclasses.replace(answer, headers=headers)
