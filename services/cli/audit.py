"""`counterfoil audit`: both halves compared completely, both ways."""

import asyncio
import textwrap
from dataclasses import asdict
from typing import Any

import click

from services.cli.opening import open_journal
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.reconciliation.audit import audit as compare_halves
from services.reconciliation.findings import WHAT_TO_DO, Finding, Report, Rule
from services.reconciliation.provider_half import ProviderUnreadable
from services.settings import AuditSettings

WIDTH = 80


@click.command(cls=Command)
@pass_output
def audit(output: Output) -> None:
    """Compare the journal with the inventory's receipts, ledger and stock, both ways. Nothing is changed.

    What is found is read once more before it is said, so a system at work raises no false alarm; an effect that is
    pending or in doubt in both readings is a finding.

    Exit codes: 0 nothing found, 1 something is unmatched, 2 wrong use, 3 the journal or the inventory is unreachable.
    """
    settings = AuditSettings.read()
    url, token = settings.inventory_url, settings.inventory_token.get_secret_value()
    with open_journal(settings) as journal:
        try:
            report = asyncio.run(
                compare_halves(journal, url, token, origin=settings.origin, ca_file=settings.inventory_ca_file)
            )
        except ProviderUnreadable as error:
            raise _unreadable(url, error) from error
    output.result(as_document(report), people=lambda: _show(output, report))
    if not report.clean:
        finish(ExitCode.FOUND)


def as_document(report: Report) -> dict[str, Any]:
    """A report as JSON has it."""
    names = ("effects", "receipts", "expired", "doubled", "lost", "unresolved", "orphans", "resolved")
    counts = {name: getattr(report, name) for name in names}
    findings = [asdict(finding) | {"what_to_do": finding.what_to_do} for finding in report.findings]
    return {**counts, "stock_conserved": report.stock_conserved, "findings": findings}


def _unreadable(url: str, error: ProviderUnreadable) -> CommandError:
    message = f"The inventory at {url} cannot be audited: {error}. Nothing was changed."
    details = {"dependency": "inventory", "where": url}
    if error.refused:
        hint = "Check COUNTERFOIL_INVENTORY_TOKEN against the service's COUNTERFOIL_INVENTORY_TOKENS."
        return CommandError(f"{message} {hint}", details=details)
    return CommandError(f"{message} Look at the service, then repeat.", ExitCode.UNREACHABLE, details=details)


def _show(output: Output, report: Report) -> None:
    columns = ("effects", "receipts", "doubled", "lost", "unresolved", "orphans", "stock conserved")
    counts = (report.effects, report.receipts, report.doubled, report.lost, report.unresolved, report.orphans)
    output.table(columns, [(*counts, "yes" if report.stock_conserved else "NO")])
    if report.expired:
        output.say(f"Receipts that retention has taken: {report.expired}.")
    if report.resolved:
        output.say(f"Differences that a person has dealt with: {report.resolved} (counterfoil journal show KEY).")
    output.say("")
    if report.clean:
        output.say("Every effect has its receipt, every receipt its intent: nothing is doubled, nothing is lost.")
        return
    by_rule: dict[Rule, list[Finding]] = {}
    for finding in report.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, findings in by_rule.items():
        output.say(textwrap.fill(f"{rule} ({len(findings)}). {WHAT_TO_DO[rule]}.", WIDTH))
        for finding in findings:
            output.say(_paragraph(finding))
        output.say("")
    count = len(report.findings)
    output.say(f"{count} finding{'' if count == 1 else 's'}. Nothing was changed.")


def _paragraph(finding: Finding) -> str:
    what = f"  {finding.what}" if finding.what else ""
    return f"  {finding.key}{what}\n    journal:    {finding.journal}\n    inventory:  {finding.provider}"
