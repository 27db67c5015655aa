"""`counterfoil effects show`: both halves of one effect, side by side and in one order."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import click
import httpx

from services.cli.opening import check_effect, find_key, open_journal
from services.cli.output import Command, ExitCode, Output, finish, pass_output
from services.cli.timeline import COLUMNS, Moment, note, timeline
from services.cli.words import document, moment, without_reference
from services.effects.records import Answer, EffectRow, Receipt, Seen
from services.journal.rows import Entry, text
from services.reconciliation.checker import RULINGS, UP_TO_A_PERSON, compare, says
from services.reconciliation.provider_half import ProviderUnreadable, Remains, read_remains, read_reservation
from services.settings import InventoryClientSettings, JournalSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """Both halves of one key, and what they come to together."""

    key: str
    row: EffectRow | None
    entries: tuple[Entry, ...]
    answer: Answer
    closer: "_Closer"
    verdict: str
    exit_code: ExitCode

    @property
    def receipt(self) -> Receipt | None:
        return self.answer.receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Closer:
    """What the inventory says beside the receipt: what retention left of it, and where its reservation's units are."""

    remains: Remains | None = None
    reservation: Mapping[str, Any] | None = None


@click.command(cls=Command, short_help="Show both halves of one effect side by side.")
@click.argument("effect", metavar="KEY", callback=check_effect)
@pass_output
def show(output: Output, effect: str) -> None:
    """Show both halves of an effect side by side: the journal's, and the receipt that the inventory has of it now.

    KEY may be SCOPE/NAME too, with COUNTERFOIL_ORIGIN: that is the highest generation that was decided.

    Exit codes: 0 settled, and both halves agree; 1 they do not, or it is unsettled, or nobody knows the key; 2 wrong
    use; 3 the journal is unreachable, or the inventory could not be asked (the journal's half is shown all the same).
    """
    settings = InventoryClientSettings.read()
    with open_journal(JournalSettings.read()) as journal:
        key = find_key(journal, effect)
        row = journal.effect(key)
        answer = asyncio.run(_look_up(settings, key))
        if answer.receipt is not None:
            row = journal.effect(key)  # it may have been settled, or begun, between the two
        entries = journal.entries(key)
    closer = asyncio.run(_look_closer(settings, key, answer))
    if answer.seen is Seen.KEY_EXPIRED:
        verdict, exit_code = _judge_expired(key, row, closer.remains)
    else:
        verdict, exit_code = _judge(key, row, answer, settings.inventory_url, _ruling(entries))
    halves = _Halves(
        key=key, row=row, entries=entries, answer=answer, closer=closer, verdict=verdict, exit_code=exit_code
    )
    output.result(_document(halves), people=lambda: _side_by_side(output, halves))
    finish(exit_code)


def _ruling(entries: tuple[Entry, ...]) -> str:
    """What a person has said of a disagreement between the halves, in a sentence; empty where nobody has."""
    said = [entry.body for entry in entries if entry.kind == "resolution" and entry.body.get("ruling") in RULINGS]
    return f"{said[-1]['by']} has dealt with it: {said[-1]['ruling'].replace('-', ' ')}." if said else ""


async def _look_up(settings: InventoryClientSettings, key: str) -> Answer:
    from activities.inventory_client import InventoryClient  # noqa: PLC0415 - brings Temporal; a list needs neither

    client = InventoryClient(
        settings.inventory_url,
        settings.inventory_token.get_secret_value(),
        connections=1,
        ca_file=settings.inventory_ca_file,
    )
    try:
        return await client.look_up(key)
    finally:
        await client.close()


async def _look_closer(settings: InventoryClientSettings, key: str, answer: Answer) -> _Closer:
    """Ask what the receipt alone does not say; what is not answered is left out."""
    place: dict[str, Any] = {"url": settings.inventory_url, "token": settings.inventory_token.get_secret_value()}
    place["ca_file"] = settings.inventory_ca_file
    try:
        remains = await read_remains(key=key, **place) if answer.seen is Seen.KEY_EXPIRED else None
        receipt = answer.receipt
        made = receipt is not None and receipt.body.get("kind") == "inventory.reserve"
        reservation_id = receipt.reservation_id if receipt is not None and made else None
        if remains is not None:
            reservation_id = remains.reservation_id
        reservation = await read_reservation(reservation_id=reservation_id, **place) if reservation_id else None
    except (httpx.TransportError, ProviderUnreadable):
        return _Closer()
    return _Closer(remains=remains, reservation=reservation)


def _judge(key: str, row: EffectRow | None, answer: Answer, url: str, ruled: str) -> tuple[str, ExitCode]:
    if answer.seen is Seen.CREDENTIALS_REFUSED:
        said = f"The inventory at {url} refused the token ({answer.reason}): only the journal's half is shown. "
        return f"{said}Check COUNTERFOIL_INVENTORY_TOKEN.", ExitCode.UNREACHABLE
    if answer.seen not in {Seen.RECEIPT, Seen.ABSENT}:
        said = f"The inventory at {url} could not be asked ({answer.reason}): only the journal's half is shown. "
        return f"{said}Start it, or check COUNTERFOIL_INVENTORY_URL, and repeat.", ExitCode.UNREACHABLE
    if row is None:
        if answer.receipt is None:
            return f"Nobody knows {key}: the journal has no effect and the inventory no receipt of it.", ExitCode.FOUND
        if ruled:
            return f"The inventory has a receipt, and the journal no effect. {ruled}", ExitCode.DONE
        return "The inventory has a receipt, and the journal no effect: counterfoil audit says more.", ExitCode.FOUND
    findings = compare(row, answer.receipt)
    if not findings:
        return "Both halves agree.", ExitCode.DONE
    said = " ".join(
        f"{finding.rule}: the journal says {finding.journal}; the inventory says {finding.provider}."
        for finding in findings
    )
    if ruled and all(finding.rule in UP_TO_A_PERSON for finding in findings):
        return f"{said} {ruled}", ExitCode.DONE
    return f"{said} {findings[0].what_to_do}.", ExitCode.FOUND


def _judge_expired(key: str, row: EffectRow | None, remains: Remains | None) -> tuple[str, ExitCode]:
    dropped = "Retention has taken the body of this key's receipt at the inventory"
    if remains is None or row is None:
        return f"{dropped}: the halves cannot be compared.", ExitCode.FOUND
    left = f"{dropped}; what is left of it is {says(remains).partition(';')[0]}"
    if not row.state.terminal:
        return (
            f"{left}. No rule settles the effect from that: counterfoil effects resolve {key} --as {remains.outcome}, "
            "with what shows it as evidence."
        ), ExitCode.FOUND
    findings = compare(row, remains)
    if findings:
        return f"{left}: {findings[0].rule}. {findings[0].what_to_do}.", ExitCode.FOUND
    return f"{left}. Both halves agree as far as that goes.", ExitCode.DONE


def _document(halves: _Halves) -> dict[str, Any]:
    answer = halves.answer
    return {
        "key": halves.key,
        "agree": None if halves.exit_code is ExitCode.UNREACHABLE else halves.exit_code is ExitCode.DONE,
        "verdict": halves.verdict,
        "journal": None if halves.row is None else document(halves.row),
        "entries": [document(entry) for entry in halves.entries],
        "timeline": [one.document() for one in _timeline(halves)],
        "note": note(halves.closer.reservation),
        "provider": {
            "seen": answer.seen.value,
            "reason": answer.reason,
            "receipt": None if halves.receipt is None else halves.receipt.body,
            "remains": None if halves.closer.remains is None else asdict(halves.closer.remains),
            "reservation": halves.closer.reservation,
        },
    }


def _timeline(halves: _Halves) -> tuple[Moment, ...]:
    return timeline(halves.entries, halves.receipt, halves.closer.reservation)


def _side_by_side(output: Output, halves: _Halves) -> None:
    row, receipt = halves.row, halves.receipt
    if row is not None:
        output.say(f"{row.scope}/{row.name}, generation {row.generation}: {halves.key}\n")
    if row is not None or receipt is not None:
        journal, provider = _of_row(row), _of_receipt(halves.answer)
        if row is None or receipt is None or journal["request"] == provider["request"]:
            for half in (journal, provider):
                half["request"] = without_reference(half.get("request", ""))
        names = [name for name in journal | provider if journal.get(name) or provider.get(name)]
        lines = [(name, journal.get(name) or None, provider.get(name) or None) for name in names]
        output.table(("", "journal", "inventory"), lines)
        output.say("")
    told = _timeline(halves)
    if told:
        output.table(COLUMNS, [one.line() for one in told])
        output.say("")
    said = note(halves.closer.reservation)
    if said:
        output.say(said)
    output.say(halves.verdict)


def _of_row(row: EffectRow | None) -> dict[str, str]:
    if row is None:
        return {"outcome": "no effect"}
    settled_by = row.receipt
    marks = [mark for mark, there in (("given up", row.given_up), ("ALARM", row.alarmed)) if there]
    return {
        "outcome": ", ".join([row.state.replace("_", " "), *marks]),
        "receipt": settled_by.receipt_id if settled_by else "",
        "reservation": (settled_by.reservation_id if settled_by else "") or "",
        "kind": row.kind,
        "request": row.request,
        "fingerprint": row.fingerprint,
        "decided": moment(row.decided_at),
        "settled": moment(row.settled_at) if row.settled_at else "",
        "attempts": str(row.attempts),
        "workflow": f"{row.workflow_type} {row.workflow_id}".strip(),  # who adopts an orphan knows no type
    }


def _of_receipt(answer: Answer) -> dict[str, str]:
    receipt = answer.receipt
    if receipt is None:
        return {"outcome": "no receipt" if answer.seen is Seen.ABSENT else f"not known: {answer.reason}"}
    request = receipt.body.get("request")
    return {
        "outcome": receipt.outcome.value + (f" ({receipt.reason})" if receipt.reason else ""),
        "receipt": receipt.receipt_id,
        "reservation": receipt.reservation_id or "",
        "kind": str(receipt.body.get("kind", "")),
        "request": "" if request is None else text(request),
        "fingerprint": receipt.fingerprint or "",
        "settled": moment(datetime.fromisoformat(receipt.created_at)),
    }
