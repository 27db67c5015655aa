"""The inventory's adapter: HTTP in, `Answer` out, and the send gate.

- No byte of a keyed request leaves before its attempt's mark is journaled, or after its deadline: the gate is
  httpcore's trace event just before the request's first byte, the last moment that proves anything.
- Whatever is raised after that event is an unknown outcome; before it, this attempt provably sent nothing.
- What a receipt says is concluded from the receipt, never from the status that carried it.
- No method raises for what the network or the provider does.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import quote

import httpx

from activities.contracts import SEND_DEADLINE_SECONDS
from services.certificates import trusted
from services.effects.records import Answer, Attempt, EffectRow, Receipt, Seen, Source
from services.effects.signatures import wrong_signature
from services.journal.rows import timestamp

CONNECT_SECONDS: Final = 1.0
# Below the server's keep-alive (5 s): a connection that the server is about to close is not used again.
KEEP_ALIVE_SECONDS: Final = 2.0
# A receipt of 100 lines is about 20 KiB.
BODY_LIMIT_BYTES: Final = 256 * 1024
# Of many at once: 500 of them, the largest there are, and some room.
BATCH_LIMIT_BYTES: Final = 16 * 1024 * 1024
# What the contract lets one look-up ask for.
KEYS_AT_ONCE: Final = 500
NESTING_LIMIT: Final = 64
# The longest pause between two rounds of `perform` too: a provider that asks for more is asked again sooner.
LONGEST_PAUSE_SECONDS: Final = 300.0
# A reason stands in the journal, in logs and in Temporal's UI.
REASON_CHARACTERS: Final = 300

_PATHS: Final[Mapping[str, str]] = {
    "inventory.reserve": "/v1/reservations",
    "inventory.confirm": "/v1/reservations/{id}/confirm",
    "inventory.release": "/v1/reservations/{id}/release",
    "inventory.deliver": "/v1/deliveries",
}
_GATE_EVENTS: Final = frozenset({"http11.send_request_headers.started", "http2.send_request_headers.started"})


class SendGateClosed(Exception):
    """The gate let nothing through: the send window is over."""


@dataclass(slots=True)
class SendGate:
    """Stands before the first byte of one attempt's request.

    Attributes:
        attempt: the mark that the journal has confirmed.
        clock: aware UTC.
        opened: whether a byte may have left.
    """

    attempt: Attempt
    clock: Callable[[], datetime]
    opened: bool = False

    async def trace(self, event: str, _info: Mapping[str, Any]) -> None:
        """Httpcore's trace hook; what it raises keeps the request from being written."""
        if event in _GATE_EVENTS:
            if self.clock() >= self.attempt.not_after:
                raise SendGateClosed(f"the send window ended at {self.attempt.not_after.isoformat()}")
            self.opened = True


class InventoryClient:
    """The keyed calls of one worker process.

    Args:
        url: where the inventory is; requests go nowhere else.
        token: the tenant's bearer token.
        connections: at least as many as calls at once, so that no call waits for, or is handed, a dying connection.
        clock: aware UTC, for the send gate.
        ca_file: whose certificates to trust instead of the public authorities'.
        signing_keys: with any of them, a receipt settles only when one of them has signed it.
        transport: for tests that watch the wire.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        connections: int = 100,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        deadline_seconds: float = SEND_DEADLINE_SECONDS,
        ca_file: str | None = None,
        signing_keys: Sequence[bytes] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._signing_keys = tuple(signing_keys)
        self._client = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(deadline_seconds, connect=min(CONNECT_SECONDS, deadline_seconds)),
            limits=httpx.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            ),
            verify=trusted(ca_file),
            trust_env=False,  # HTTP_PROXY would capture a call to the loopback address
            follow_redirects=False,  # a 303 turns the POST into a GET
            http2=False,
            transport=transport,
        )
        # A request is what the journal says: nothing that an earlier answer asked us to keep goes with it.
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def send(self, row: EffectRow, attempt: Attempt) -> Answer:
        """Send the journaled bytes of an effect once, behind the gate."""
        gate = SendGate(attempt, self._clock)
        try:
            return await self._exchange(self._keyed_request(row, gate), Source.SEND)
        except Exception as error:  # noqa: BLE001 - h11, the gate and a bad URL raise more than httpx's own family
            seen = Seen.UNKNOWN if gate.opened else Seen.NOT_SENT
            return Answer(seen=seen, source=Source.SEND, reason=_describe(error))

    def _keyed_request(self, row: EffectRow, gate: SendGate) -> httpx.Request:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": f'"{row.key}"',
            "Effect-Not-After": timestamp(gate.attempt.not_after),
        }
        if row.supersedes:
            headers["Effect-Supersedes"] = ", ".join(row.supersedes)
        return self._client.build_request(
            "POST", _path(row), content=row.request.encode(), headers=headers, extensions={"trace": gate.trace}
        )

    async def look_up(self, key: str) -> Answer:
        """Ask for a key's receipt."""
        return await self._ask("GET", f"/v1/receipts/{quote(key, safe='')}", Source.LOOK_UP)

    async def look_up_many(self, keys: Sequence[str]) -> dict[str, Answer]:
        """Ask for the receipts of many keys, up to 500 in one exchange; every key has its answer."""
        pages = [keys[first : first + KEYS_AT_ONCE] for first in range(0, len(keys), KEYS_AT_ONCE)]
        return {key: answer for page in pages for key, answer in (await self._page(page)).items()}

    async def _page(self, keys: Sequence[str]) -> dict[str, Answer]:
        try:
            request = self._client.build_request("POST", "/v1/receipts/lookup", json={"keys": list(keys)})
            response = await self._whole(request, BATCH_LIMIT_BYTES)
        except Exception as error:  # noqa: BLE001 - as above
            return dict.fromkeys(keys, Answer(seen=Seen.UNKNOWN, source=Source.LOOK_UP, reason=_describe(error)))
        return classify_many(response, keys, self._signing_keys)

    async def void(self, key: str) -> Answer:
        """Close a key; the answer is the receipt that owns it then."""
        return await self._ask("PUT", f"/v1/receipts/{quote(key, safe='')}/void", Source.VOID)

    async def _ask(self, method: str, path: str, source: Source) -> Answer:
        try:
            return await self._exchange(self._client.build_request(method, path), source)
        except Exception as error:  # noqa: BLE001 - as above
            return Answer(seen=Seen.UNKNOWN, source=source, reason=_describe(error))

    async def _exchange(self, request: httpx.Request, source: Source) -> Answer:
        response = await self._whole(request, BODY_LIMIT_BYTES)
        if response.body is None:
            return _unknown(source, f"status {response.status} with over {BODY_LIMIT_BYTES} bytes")
        return classify(response.status, response.headers, response.body, source, self._signing_keys)

    async def _whole(self, request: httpx.Request, limit_bytes: int) -> "_Response":
        # httpx has no total deadline, and a dripping peer outlives its read time-out.
        async with asyncio.timeout(self._deadline_seconds):
            response = await self._client.send(request, stream=True)
            body = bytearray()
            try:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > limit_bytes:
                        break
            finally:
                await response.aclose()
        whole = bytes(body) if len(body) <= limit_bytes else None
        return _Response(status=response.status_code, headers=response.headers, body=whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """A complete response; without its body where that was longer than allowed."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


def classify(
    status: int, headers: Mapping[str, str], body: bytes, source: Source, signing_keys: Sequence[bytes] = ()
) -> Answer:
    """What a complete response shows.

    Args:
        status: the HTTP status.
        headers: with lower-case or case-insensitive names.
        body: as it came.
        source: what was asked.
        signing_keys: with any of them, a receipt that none of them has signed shows nothing.
    """
    try:
        document = _parse(body)
    except ValueError as error:
        return _unknown(source, f"status {status}, and {error}")
    if status in {200, 201}:
        return _from_receipt(document, source, f"status {status}", signing_keys)
    folder, _, problem = str(document.get("type", "")).rpartition("/")
    pause = _retry_after(headers.get("retry-after"))
    known = _PROBLEMS.get((status, problem)) if folder == "/problems" else None
    reason = f"{status} {problem}" if known else f"status {status}"
    if known is Seen.RECEIPT:
        return _from_receipt(document.get("receipt"), source, reason, signing_keys, document.get("predecessor"))
    if known is Seen.ABSENT:
        observed_at = _time(document.get("observed_at"))
        if source is Source.SEND or observed_at is None:
            return _unknown(source, reason)
        return Answer(seen=Seen.ABSENT, source=source, reason=reason, observed_at=observed_at)
    if known is Seen.REQUEST_REFUSED and isinstance(document.get("detail"), str):
        reason = _one_line(f"{reason}: {document['detail']}")
    return Answer(seen=known or Seen.UNKNOWN, source=source, reason=reason, retry_after_seconds=pause)


def classify_many(response: "_Response", keys: Sequence[str], signing_keys: Sequence[bytes] = ()) -> dict[str, Answer]:
    """What a look-up of many keys shows of each.

    Whatever one key's answer is, it says nothing of another's; the words are those of a look-up of one, so that a
    journal that hears both in turn takes neither for news.
    """
    source = Source.LOOK_UP
    if response.body is None:
        return dict.fromkeys(keys, _unknown(source, f"status {response.status} with over {BATCH_LIMIT_BYTES} bytes"))
    if response.status != httpx.codes.OK:
        whole = classify(response.status, response.headers, response.body, source)
        # Of a single key it says nothing: whoever answers this path as if it were a key has not looked for ours.
        of_all = {Seen.BUSY, Seen.CREDENTIALS_REFUSED}
        return dict.fromkeys(keys, whole if whole.seen in of_all else _unknown(source, f"status {response.status}"))
    try:
        document = _parse(response.body)
        receipts = _object(document.get("receipts"))
    except ValueError as error:
        return dict.fromkeys(keys, _unknown(source, f"status {response.status}, and {error}"))
    observed_at = _time(document.get("observed_at"))

    def of(key: str) -> Answer:
        if key not in receipts:
            return _unknown(source, "a look-up that leaves the key out")
        if (found := receipts[key]) is None:
            if observed_at is None:
                return _unknown(source, "404 receipt-not-found")
            return Answer(seen=Seen.ABSENT, source=source, reason="404 receipt-not-found", observed_at=observed_at)
        if isinstance(found, dict) and found.get("type") == "/problems/key-expired":
            return Answer(seen=Seen.KEY_EXPIRED, source=source, reason="410 key-expired")
        return _from_receipt(found, source, "status 200", signing_keys)

    return {key: of(key) for key in keys}


_PROBLEMS: Final[Mapping[tuple[int, str], Seen]] = {
    (400, "validation-failed"): Seen.REQUEST_REFUSED,
    (400, "idempotency-key-missing"): Seen.REQUEST_REFUSED,
    (400, "idempotency-key-invalid"): Seen.REQUEST_REFUSED,
    (401, "unauthorized"): Seen.CREDENTIALS_REFUSED,
    (403, "forbidden"): Seen.CREDENTIALS_REFUSED,
    (404, "receipt-not-found"): Seen.ABSENT,
    (404, "reservation-not-found"): Seen.REQUEST_REFUSED,
    (409, "insufficient-stock"): Seen.RECEIPT,
    (409, "unknown-sku"): Seen.RECEIPT,
    (409, "hold-expired"): Seen.RECEIPT,
    (409, "invalid-transition"): Seen.RECEIPT,
    (409, "predecessor-committed"): Seen.RECEIPT,
    (409, "request-in-progress"): Seen.BUSY,
    (410, "key-voided"): Seen.RECEIPT,
    (410, "key-expired"): Seen.KEY_EXPIRED,
    (412, "not-after-passed"): Seen.DEADLINE_REFUSED,
    (413, "payload-too-large"): Seen.REQUEST_REFUSED,
    (422, "idempotency-key-reused"): Seen.KEY_REUSED,
    (429, "overloaded"): Seen.BUSY,
    (503, "overloaded"): Seen.BUSY,
}


def _unknown(source: Source, reason: str) -> Answer:
    return Answer(seen=Seen.UNKNOWN, source=source, reason=_one_line(reason))


def _from_receipt(
    body: Any, source: Source, reason: str, signing_keys: Sequence[bytes], predecessor: Any = None
) -> Answer:
    try:
        receipt = _receipt(body, signing_keys)
        former = None if predecessor is None else _receipt(predecessor, signing_keys)
    except ValueError as error:
        return _unknown(source, f"{reason} without a usable receipt: {error}")
    return Answer(seen=Seen.RECEIPT, source=source, reason=reason, receipt=receipt, predecessor=former)


def _receipt(body: Any, signing_keys: Sequence[bytes]) -> Receipt:
    receipt = Receipt(_object(body))
    wrong = wrong_signature(receipt.body, signing_keys) if signing_keys else None
    if wrong is not None:
        raise ValueError(wrong)
    return receipt


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - every unusable body is one kind of error
    return value


def _parse(body: bytes) -> dict[str, Any]:
    """Strict JSON: an object without NaN, duplicate members, endless integers or deep nesting.

    Raises:
        ValueError: the body is anything else.
    """
    try:
        document = _object(json.loads(body, object_pairs_hook=_members, parse_constant=_constant))
    except RecursionError:
        raise ValueError("the body is nested without end") from None
    except ValueError as error:
        raise ValueError(f"the body is no usable JSON ({str(error)[:80]})") from None
    layer: list[Any] = [document]
    for _ in range(NESTING_LIMIT):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return document
    raise ValueError(f"the body is nested deeper than {NESTING_LIMIT}")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member stands twice")
    return members


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _time(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from either form of Retry-After; None where there is none or it cannot be read."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_PAUSE_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)  # -0000 is UTC that does not say where it was
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), LONGEST_PAUSE_SECONDS)


def _path(row: EffectRow) -> str:
    """Where a kind is asked for; a parameter fills its own place and no other.

    Raises:
        ValueError: no such kind, or a parameter is missing or would change the path's meaning.
    """
    template = _PATHS.get(row.kind)
    if template is None or any(value in {"", ".", ".."} for value in row.path.values()):
        raise ValueError(f"no path for {row.kind} {row.path}")
    return template.format(**{name: quote(value, safe="") for name, value in row.path.items()})


def _one_line(text: str) -> str:
    """Text that can be journaled and shown: one line, no control characters, no half surrogates."""
    return "".join(one if one.isprintable() else "?" for one in text[:REASON_CHARACTERS])


def _describe(error: Exception) -> str:
    """The error's name, and its text where that is the same every time."""
    return str(error) if isinstance(error, SendGateClosed) else type(error).__name__
