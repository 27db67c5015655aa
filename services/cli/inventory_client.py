"""The inventory as a person's command line meets it: stock read, and one keyed delivery sent.

What a delivery may conclude (the engine's own client, for workflows, is another one):

- Only a receipt that matches key and fingerprint says "delivered". Everything that ended after the first byte may have
  left is unknown, and the same command with the same key settles it.
- Nothing is retried here: a person repeats the command.
"""

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from services.certificates import trusted
from services.cli.output import CommandError, ExitCode
from services.effects.keys import canonical, fingerprint

# A person waits: longer than the service's own lock timeout (2 s) and shorter than patience.
_CONNECT_SECONDS = 3
_ANSWER_SECONDS = 10
# Far beyond any receipt of one line.
_BODY_BYTES = 1024 * 1024
# Long enough for clocks that differ a little, short enough that a lost packet lands today or never.
_NOT_AFTER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """So many of one SKU to be delivered, under a key."""

    sku: str
    quantity: int
    key: str

    @property
    def command(self) -> str:
        """The command that finishes this delivery, however often it is repeated."""
        return command_line(f"{self.sku}={self.quantity}", key=self.key)

    @property
    def request(self) -> dict[str, Any]:
        """The request's members."""
        return {"quantity": self.quantity, "sku": self.sku}

    @property
    def fingerprint(self) -> str:
        """What the inventory's receipt of this delivery must carry."""
        return fingerprint("inventory.deliver", {}, self.request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The stock of one SKU: received = available + held + consumed."""

    sku: str
    received: int
    available: int
    held: int
    consumed: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: httpx.Headers
    body: dict[str, Any]

    @property
    def problem(self) -> str:
        kind = self.body.get("type")
        return kind.rpartition("/")[2] if isinstance(kind, str) else ""


class _NoAnswer(Exception):
    """The connection was made, and no answer came that can be understood."""


def command_line(*deliveries: str, key: str = "") -> str:
    """The `counterfoil inventory stock` command for these deliveries, as one may paste it."""
    words = ["counterfoil", "inventory", "stock"]
    for delivery in deliveries:
        words += ["--deliver", delivery]
    return shlex.join([*words, *(["--key", key] if key else [])])


def read_stock(url: str, token: str, skus: Sequence[str], *, ca_file: str | None = None) -> dict[str, Balance | None]:
    """The stock of each SKU; None for one that the inventory does not know.

    Raises:
        CommandError: the inventory is unreachable, refused the token, or answered nonsense.
    """
    found: dict[str, Balance | None] = {}
    with _client(url, token, ca_file) as client:
        for sku in skus:
            try:
                answer = _ask(client, "GET", f"/v1/stock/{sku}")
                known = answer.status != httpx.codes.NOT_FOUND or answer.problem != "sku-not-found"
                found[sku] = _balance(answer, url) if known else None
            except _NoAnswer as error:
                message = (
                    f"The inventory at {url} gave no usable answer ({error}). Nothing was changed. Repeat the command."
                )
                raise CommandError(message, ExitCode.UNREACHABLE) from error
    return found


def _balance(answer: _Answer, url: str) -> Balance:
    _refuse_credentials(answer, url)
    if answer.status != httpx.codes.OK:
        raise _NoAnswer(f"status {answer.status} {answer.problem}".strip())
    fields = {name: answer.body.get(name) for name in Balance.__slots__}
    if not isinstance(fields.pop("sku"), str) or not all(type(value) is int for value in fields.values()):
        raise _NoAnswer("the stock lacks a member")
    return Balance(**{name: answer.body[name] for name in Balance.__slots__})


def deliver(url: str, token: str, delivery: Delivery, *, ca_file: str | None = None) -> tuple[bool, str]:
    """Send one keyed delivery; whether it had been delivered before, and the receipt's id.

    Raises:
        CommandError: refused (2), or not sent, or unknown (3); the details say the outcome, the key and the command.
    """
    headers = {
        "Idempotency-Key": f'"{delivery.key}"',
        "Effect-Not-After": (datetime.now(UTC) + _NOT_AFTER).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
    what = f"The delivery of {delivery.quantity} {delivery.sku}"
    with _client(url, token, ca_file) as client:
        try:
            answer = _ask(client, "POST", "/v1/deliveries", content=canonical(delivery.request), headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            # A fresh client has no kept-alive connection: without a connection no byte has left.
            message = (
                f"{what} was not sent: the inventory at {url} cannot be reached ({type(error).__name__}). Start it"
            )
            raise _open_end(f"{message} with `counterfoil inventory`", delivery, "not-sent") from error
        except _NoAnswer as error:
            raise _unknown(what, delivery, str(error)) from error
    _refuse_credentials(answer, url)
    return _conclude(what, delivery, answer)


_REFUSALS: Mapping[tuple[int, str], str] = {
    (400, "validation-failed"): "the inventory does not accept the request; this try delivered nothing",
    (413, "payload-too-large"): "the inventory does not accept the request; this try delivered nothing",
    (410, "key-voided"): "this key is closed for good and delivered nothing. Deliver under a new key",
    (410, "key-expired"): "this key is too old for its receipt to be kept. Compare the stock before you deliver more",
    (412, "not-after-passed"): "the inventory's clock is minutes ahead of this one; this try delivered nothing. Set it",
    (422, "idempotency-key-reused"): "this key stands for another SKU or quantity, which stays as it is. Give those",
}
_BUSY = {(409, "request-in-progress"), (429, "overloaded"), (503, "overloaded")}


def _conclude(what: str, delivery: Delivery, answer: _Answer) -> tuple[bool, str]:
    receipt, seen = answer.body, (answer.status, answer.problem)
    if answer.status in {httpx.codes.OK, httpx.codes.CREATED}:
        expected = (delivery.key, delivery.fingerprint, "committed")
        if (receipt.get("key"), receipt.get("fingerprint"), receipt.get("outcome")) != expected:
            raise _unknown(what, delivery, "the receipt is of something else: tell whoever runs the inventory")
        replayed = answer.headers.get("Idempotency-Replayed") == "true"
        return replayed, str(receipt.get("receipt_id", ""))
    if seen in _BUSY:
        raise _open_end(f"{what} has no answer yet: the inventory is busy. Wait a moment", delivery, "unknown")
    if seen in _REFUSALS:
        details = {"outcome": "refused", "problem": answer.problem, "key": delivery.key}
        raise CommandError(f"{what} was refused: {_REFUSALS[seen]}.", details=details)
    raise _unknown(what, delivery, f"status {answer.status} {answer.problem}".strip())


def _unknown(what: str, delivery: Delivery, reason: str) -> CommandError:
    said = f"{what} was sent and its outcome is unknown ({reason}). It is delivered once or not at all; to find out,"
    return _open_end(said, delivery, "unknown", joint=" ")


def _open_end(said: str, delivery: Delivery, outcome: str, *, joint: str = ", then ") -> CommandError:
    details = {"outcome": outcome, "key": delivery.key, "repeat": delivery.command}
    message = f"{said}{joint}repeat with the same key: {delivery.command}"
    return CommandError(message, ExitCode.UNREACHABLE, details=details)


def _refuse_credentials(answer: _Answer, url: str) -> None:
    if answer.status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        message = (
            f"The inventory at {url} refused the token ({answer.status}). Nothing was changed. Check "
            "COUNTERFOIL_INVENTORY_TOKEN against the service's COUNTERFOIL_INVENTORY_TOKENS."
        )
        raise CommandError(message)


@contextmanager
def _client(url: str, token: str, ca_file: str | None) -> Iterator[httpx.Client]:
    # trust_env: a proxy variable would capture a call to this machine. Redirects: one turned a POST into a GET.
    with httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity", "Content-Type": "application/json"},
        timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
        verify=trusted(ca_file),
        trust_env=False,
        follow_redirects=False,
    ) as client:
        yield client


def _ask(client: httpx.Client, method: str, path: str, **request: Any) -> _Answer:
    """One request, its body capped and its total time bounded (httpx has only a limit per read)."""
    try:
        with client.stream(method, path, **request) as response:
            body = _body(response, time.monotonic() + _ANSWER_SECONDS)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, _NoAnswer):
        raise
    except Exception as error:
        # Not httpx.TransportError alone: h11's own errors leak through, and all of it means "nobody heard".
        raise _NoAnswer(type(error).__name__) from error
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise _NoAnswer(f"status {response.status_code}, and no JSON object")
    return _Answer(status=response.status_code, headers=response.headers, body=parsed)


def _body(response: httpx.Response, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > _BODY_BYTES:
            raise _NoAnswer("the answer is too long")
        if time.monotonic() > deadline:
            raise _NoAnswer("the answer took too long")
    return bytes(body)
