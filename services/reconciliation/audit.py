"""The audit: both halves compared completely, both ways, from the journal and HTTP alone; it changes nothing.

    report = await audit(journal, url, token, origin="fra-prod")

Effects may be settling while it reads, and a live system must raise no alarm:

- The journal is read first, in one snapshot, then the provider: whatever the journal has as settled then, the provider
  has settled before, so its receipt is there. How the provider is read is in `services.reconciliation.provider_half`.
- The other way round, a receipt can be of an effect that was begun after the snapshot. So what was found is read once
  more, and only what both readings found is reported: an intent is durable before its first byte leaves, so the second
  snapshot has the intent of every receipt that the first reading saw. What was pending in both is unresolved; what
  began after the first reading is left to the next audit.
- A real fault does not go away between two readings.

What retention has taken is not in the feed: its keys are looked up, and what is left of a receipt is compared.

The rules are in `services.reconciliation.findings`. Both halves are held in memory while they are compared.
"""

import asyncio

import httpx

from services.journal.reads import JournalReads
from services.reconciliation import provider_half
from services.reconciliation.checker import check
from services.reconciliation.findings import Report


async def audit(
    journal: JournalReads,
    url: str,
    token: str,
    *,
    origin: str | None = None,
    ca_file: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Report:
    """Compare a journal with its provider.

    Args:
        journal: the journal; it is only read.
        url: where the provider answers.
        token: the tenant's bearer token.
        origin: this deployment; it tells its own receipts where the journal has none of them any more. The origins of
            the journal's rows are known without it.
        ca_file: whose certificates to trust instead of the public authorities'.
        transport: for tests that watch the wire.

    Raises:
        httpx.TransportError: the provider cannot be reached.
        ProviderUnreadable: it refuses the token, or its answers cannot be read.
        DatabaseError: the journal cannot be read.
    """

    async def one_reading() -> Report:
        snapshot = await asyncio.to_thread(journal.snapshot)
        journaled = {str(row["key"]): row["receipt"] for row in snapshot.effects}
        provider = await provider_half.read(url, token, journaled=journaled, ca_file=ca_file, transport=transport)
        return await asyncio.to_thread(check, snapshot, provider, origin=origin)

    first = await one_reading()
    if first.clean:
        return first
    before = {(finding.rule, finding.key) for finding in first.findings}
    second = await one_reading()
    return Report(
        effects=second.effects,
        receipts=second.receipts,
        expired=second.expired,
        resolved=second.resolved,
        findings=tuple(finding for finding in second.findings if (finding.rule, finding.key) in before),
    )
