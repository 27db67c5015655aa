"""`counterfoil inventory conformance`: does a provider keep the keyed-effect contract, seen from outside."""

import asyncio
import textwrap
from http import HTTPStatus
from pathlib import Path

import click
from pydantic import SecretStr, TypeAdapter, ValidationError

from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.conformance.bench import Unreachable, connect
from services.conformance.capabilities import Capability
from services.conformance.suite import DEFAULT_ROUNDS, Finding, Refused, Report, State, examine
from services.settings import InventoryToken, InventoryTokenSettings, InventoryUrl

WIDTH = 100
_ROUNDS = click.IntRange(2, 500)


def _url(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    try:
        url: str = TypeAdapter(InventoryUrl).validate_python(value)
    except ValidationError:
        raise click.BadParameter(
            "it must be http:// or https:// and a host, without query and with nothing secret."
        ) from None
    return url


@click.command(cls=Command, short_help="Check that a provider keeps the keyed-effect contract.")
@click.option("--url", required=True, callback=_url, help="Where the provider answers.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a token that may write.  [default: COUNTERFOIL_INVENTORY_TOKEN]",
)
@click.option("--rounds", type=_ROUNDS, default=DEFAULT_ROUNDS, show_default=True, help="How often each race is run.")
@pass_output
def conformance(output: Output, url: str, token_file: Path | None, rounds: int) -> None:
    """Check any implementation of docs/effects-api.md, by HTTP alone, one capability after another.

    What a provider lacks is shown with the exchange that showed it. It takes about half a minute, and LEAVES TRACES:
    receipts are kept for ever, and so are those of this run. Everything it writes is under keys and SKUs that begin
    with CONFORMANCE- and a random number; no other stock is touched. Use a tenant that is there for such runs.

    Exit codes: 0 all is there, 1 something lacks, 2 wrong use or the token is refused, 3 the provider is unreachable.
    """
    secret = _token(token_file)
    try:
        report = asyncio.run(_examine(output, url, secret, rounds))
    except Unreachable as error:
        message = f"Nothing answers at {url} ({error}). Start the provider, or check --url."
        details = {"dependency": "provider", "where": url}
        raise CommandError(message, ExitCode.UNREACHABLE, details=details) from error
    except Refused as error:
        why = "it may only read" if error.exchange.status == HTTPStatus.FORBIDDEN else "it is not known there"
        message = (
            f"The provider at {url} refused the token ({error}): {why}. Nothing was changed. Give one that may write."
        )
        raise CommandError(message, details={"dependency": "provider", "where": url}) from error
    output.result({"url": url, **report.as_document()}, people=lambda: _show(output, report))
    if report.lacking:
        finish(ExitCode.FOUND)


async def _examine(output: Output, url: str, secret: str, rounds: int) -> Report:
    async with connect(url, secret) as http:
        return await examine(http, rounds=rounds, progress=lambda name: output.note(f"Checking {name}"))


def _token(file: Path | None) -> str:
    if file is None:
        return InventoryTokenSettings.read().inventory_token.get_secret_value()
    try:
        text = file.read_text(encoding="utf-8").strip()
        if not text:
            raise CommandError(f"There is no token in {file}. Nothing was sent.")
        token: SecretStr = TypeAdapter(InventoryToken).validate_python(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a token is printable ASCII without spaces"
        # Not from the error: it would repeat what is in the file.
        raise CommandError(f"The token in {file} cannot be used ({reason}). Nothing was sent.") from None
    return token.get_secret_value()


def _show(output: Output, report: Report) -> None:
    rows = []
    for capability in Capability:
        found = report.of(capability)
        held = sum(finding.state is State.HELD for finding in found)
        rows.append((capability.value, report.state(capability).value, f"{held} of {len(found)}"))
    output.table(("capability", "state", "checks held"), rows)
    output.say("")
    output.say(f"signature   {report.seen.signature}")
    output.say(f"retention   {report.seen.retention}")
    told = [finding for finding in report.findings if finding.state is not State.HELD]
    if _is_no_provider(report):
        told = told[:1]  # the others would say the same again
    for finding in told:
        output.say("")
        _show_finding(output, finding)
    output.say("")
    output.say(textwrap.fill(_verdict(report), WIDTH))


def _show_finding(output: Output, finding: Finding) -> None:
    output.say(f"{finding.check.capability.value}: {finding.check.name}: {finding.state.value}")
    said = f"The contract says: {finding.check.sentence}"
    for text in (said, f"Seen: {finding.message}") if finding.state is State.LACKING else (finding.message,):
        output.say(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  "))
    for exchange in finding.exchanges:
        output.say(textwrap.indent(exchange.as_text(), "    "))


def _is_no_provider(report: Report) -> bool:
    """Whether no stock ever moved, and no answer that is shown was JSON: a web server of another kind."""
    moved = any(finding.state is State.HELD for finding in report.of(Capability.STOCK))
    return not moved and not any(exchange.document for finding in report.findings for exchange in finding.exchanges)


def _verdict(report: Report) -> str:
    traces = f"{report.requests} requests, all under {report.run}."
    if _is_no_provider(report):
        return (
            "What answers is no provider of this contract: no answer is a JSON object. Check --url; --json has every "
            f"check. {traces}"
        )
    if not report.lacking:
        return f"The provider keeps the contract. {traces}"
    return f"The provider lacks: {', '.join(report.lacking)}. {traces}"
