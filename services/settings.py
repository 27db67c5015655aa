"""Settings: what a process reads from its environment (COUNTERFOIL_*), once, into one frozen object.

What this module guarantees:

- A process reads only the variables of its own class: the inventory never sees the journal's URL, nor the reverse.
- A missing or bad variable is one sentence that names it and gives an example; its value is never shown.
- Nothing is read at import, and no variable from a file.
"""

import ipaddress
import re
import ssl
from datetime import timedelta
from typing import Annotated, Self, TypedDict

from pydantic import AfterValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from services.effects.horizon import recovery_horizon
from services.effects.settle import MARGIN, SEND_WINDOW

PREFIX = "COUNTERFOIL_"
SEND_WINDOW_SECONDS = int(SEND_WINDOW.total_seconds())
MARGIN_SECONDS = int(MARGIN.total_seconds())
# Long enough for a restart or a short outage, short enough for the same shift to hear of it.
UNKNOWN_ALARM_SECONDS = 3600
# `temporal server start-dev` serves its UI a thousand ports above its own.
DEFAULT_TEMPORAL_UI_URL = "http://localhost:8233"

# Until then nobody's clock reaches back; beyond it, no date would.
_LONGEST_RETENTION_SECONDS = 100 * 365 * 24 * 3600
SHORTEST_SIGNING_KEY = 32

# The tenant is marked by the SKU ORIGIN-<origin>, and a SKU has at most 64 characters.
_ORIGIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,56}")
# Printable, and without the comma that stands between two of them.
_SIGNING_KEY = re.compile(rf"[!-+\--~]{{{SHORTEST_SIGNING_KEY},}}")
_IP_AND_PORT = re.compile(r"(?:(?P<ip>[0-9.]+)|\[(?P<ip6>[0-9A-Fa-f:.]+)\]):[0-9]{1,5}")
_HTTP_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?")


class SettingsError(Exception):
    """The environment is not usable: each sentence names a variable, says what is wrong and gives an example."""


def _origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError("it must be 1-57 of a-z, 0-9, '.', '_' and '-', and begin with a letter or digit")
    return value


def _http_url(value: str) -> str:
    # A user or password in the URL would be shown wherever the URL is: the token is how one signs in.
    if not _HTTP_URL.fullmatch(value):
        raise ValueError("it must be http:// or https://, a host and nothing secret")
    return value.rstrip("/")


def _bearer(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError("it must be printable ASCII without spaces")
    return value


def _signing_keys(value: SecretStr | None) -> SecretStr | None:
    if not all(_SIGNING_KEY.fullmatch(key.decode()) for key in split_keys(value)):
        raise ValueError(
            f"each key must be at least {SHORTEST_SIGNING_KEY} printable ASCII characters without spaces, and a comma "
            "between two"
        )
    return value


def split_keys(value: SecretStr | None) -> tuple[bytes, ...]:
    """The signing keys of a variable, in their order; none if it is not set."""
    return () if value is None else tuple(key.strip(" ").encode() for key in value.get_secret_value().split(","))


def _ip_and_port(value: str | None) -> str | None:
    if value is None:
        return None
    found = _IP_AND_PORT.fullmatch(value)
    try:
        ipaddress.ip_address((found["ip"] or found["ip6"]) if found else "")
    except ValueError:
        raise ValueError("it must be an IP address, a colon and a port") from None
    return value


def _ca_file(value: str) -> str:
    try:
        ssl.create_default_context(cafile=value)
    except OSError:  # ssl's own errors are some of these
        raise ValueError("it must be a file of PEM certificates that this process may read") from None
    return value


Origin = Annotated[
    str,
    AfterValidator(_origin),
    Field(description="the name of this deployment, a part of every key", examples=["fra-prod"]),
]
JournalUrl = Annotated[
    SecretStr, Field(description="where the journal is", examples=["sqlite:///var/journal.db"], min_length=1)
]
InventoryDatabaseUrl = Annotated[
    SecretStr, Field(description="the inventory's own database", examples=["sqlite:///var/inventory.db"], min_length=1)
]
InventoryTokens = Annotated[
    SecretStr,
    Field(
        description="the tenants and their tokens, :read for one that may only read",
        examples=["acme=token-a,acme:read=token-b,globex=token-c"],
    ),
]
InventorySigningKeys = Annotated[
    SecretStr | None,
    AfterValidator(_signing_keys),
    Field(
        description="the keys of the receipts' signatures, of which the first one signs",
        examples=["$(openssl rand -hex 32)"],
    ),
]
InventoryRetentionSeconds = Annotated[
    int | None,
    Field(
        gt=0,
        le=_LONGEST_RETENTION_SECONDS,
        description="how long receipts keep their bodies, for ever if it is not set",
        examples=[365 * 24 * 3600],
    ),
]
InventoryUrl = Annotated[
    str,
    AfterValidator(_http_url),
    Field(description="where the inventory answers", examples=["http://127.0.0.1:8090"]),
]
TemporalUiUrl = Annotated[
    str,
    AfterValidator(_http_url),
    Field(description="where Temporal's UI is served", examples=["http://localhost:8233"]),
]
InventoryToken = Annotated[
    SecretStr,
    AfterValidator(_bearer),
    Field(description="the tenant's token at the inventory", examples=["token-a"]),
]


InventoryCaFile = Annotated[
    str | None,
    AfterValidator(_ca_file),
    Field(description="whose certificates the inventory may show", examples=["/etc/counterfoil/ca.pem"]),
]


MetricsAddress = Annotated[
    str | None,
    AfterValidator(_ip_and_port),
    Field(description="where a worker serves its metrics, nowhere if it is not set", examples=["127.0.0.1:9464"]),
]


class _Settings(BaseSettings):
    """The environment and nothing else; frozen, and silent about values."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,  # an empty variable is how a compose file says "not set"
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings passes all of these by name
        init_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment alone: no .env file that a deployment did not mean, no secrets folder."""
        return (env_settings,)

    @classmethod
    def read(cls) -> Self:
        """Read this process's settings.

        Raises:
            SettingsError: a variable is missing or bad.
        """
        try:
            return cls()
        except ValidationError as error:
            sentences = [_sentence(cls, problem) for problem in error.errors(include_url=False, include_input=False)]
        raise SettingsError(" ".join(sentences))


class JournalSettings(_Settings):
    """What a process needs that opens the journal."""

    journal_database_url: JournalUrl


class InventoryDatabaseSettings(_Settings):
    """What a process needs that opens the inventory's database: its migration."""

    inventory_database_url: InventoryDatabaseUrl


class InventorySigningSettings(_Settings):
    """What whoever signs receipts, or reads signed ones, may be given."""

    inventory_signing_keys: InventorySigningKeys = None

    @property
    def signing_keys(self) -> tuple[bytes, ...]:
        """The keys of the receipts' signatures, of which the first signs; none: nothing is signed or compared."""
        return split_keys(self.inventory_signing_keys)


class InventoryServingSettings(InventorySigningSettings):
    """What the inventory needs when its database is named on the command line."""

    inventory_tokens: InventoryTokens
    inventory_retention_seconds: InventoryRetentionSeconds = None

    @property
    def retention(self) -> timedelta | None:
        """How long receipts keep their bodies; None: for ever."""
        seconds = self.inventory_retention_seconds
        return None if seconds is None else timedelta(seconds=seconds)


class InventorySettings(InventoryDatabaseSettings, InventoryServingSettings):
    """What the inventory service needs: its own database, its tenants' tokens, and how it keeps and signs receipts."""


class InventoryTokenSettings(_Settings):
    """What a caller needs that names the address itself."""

    inventory_token: InventoryToken


class InventoryClientSettings(InventoryTokenSettings):
    """What a caller of the inventory needs."""

    inventory_url: InventoryUrl
    inventory_ca_file: InventoryCaFile = None


class OriginSettings(_Settings):
    """What a process needs that acts for a deployment."""

    origin: Origin


class TemporalUiSettings(_Settings):
    """What a command needs that shows links: only where the UI is; Temporal itself has its own configuration."""

    temporal_ui_url: TemporalUiUrl = DEFAULT_TEMPORAL_UI_URL


class AuditSettings(JournalSettings, InventoryClientSettings, OriginSettings):
    """What an audit needs: both halves, and whose effects they are."""


class Rules(TypedDict):
    """How long an effect may be sent, how far clocks differ, and how long the provider remembers (None: for ever)."""

    send_window: timedelta
    margin: timedelta
    retention: timedelta | None


class RuleSettings(_Settings):
    """How long an effect may be sent, and asked for: whoever writes a deployment's journal has the same."""

    send_window_seconds: Annotated[
        int,
        # No longer than the workflows go on sending (workflows.policies.schedule_to_close).
        Field(
            gt=0,
            le=SEND_WINDOW_SECONDS,
            description="how long after its decision an effect may be sent",
            examples=[SEND_WINDOW_SECONDS],
        ),
    ] = SEND_WINDOW_SECONDS
    margin_seconds: Annotated[
        int, Field(gt=0, description="how far two clocks may differ", examples=[MARGIN_SECONDS])
    ] = MARGIN_SECONDS
    recovery_horizon_seconds: Annotated[
        int | None,
        Field(
            gt=0,
            le=_LONGEST_RETENTION_SECONDS,
            description="how long after its decision an effect may still be asked for",
            examples=[int(recovery_horizon(SEND_WINDOW, MARGIN).total_seconds())],
        ),
    ] = None
    inventory_retention_seconds: InventoryRetentionSeconds = None

    @property
    def rules(self) -> Rules:
        """What `Journal` takes of it."""
        retention = self.inventory_retention_seconds
        return Rules(
            send_window=timedelta(seconds=self.send_window_seconds),
            margin=timedelta(seconds=self.margin_seconds),
            retention=None if retention is None else timedelta(seconds=retention),
        )

    @field_validator("margin_seconds")
    @classmethod
    def _below_the_window(cls, value: int, info: ValidationInfo) -> int:
        window_seconds = info.data.get("send_window_seconds")
        if window_seconds is not None and value >= window_seconds:
            raise ValueError(f"it must be less than {PREFIX}SEND_WINDOW_SECONDS")
        return value

    @field_validator("recovery_horizon_seconds")
    @classmethod
    def _beyond_the_window(cls, value: int | None, info: ValidationInfo) -> int | None:
        told = info.data
        if value is None or not {"send_window_seconds", "margin_seconds"} <= set(told):
            return value
        if value < told["send_window_seconds"] + told["margin_seconds"]:
            raise ValueError(f"it must be at least {PREFIX}SEND_WINDOW_SECONDS and {PREFIX}MARGIN_SECONDS together")
        return value

    @field_validator("inventory_retention_seconds")
    @classmethod
    def _beyond_the_horizon(cls, value: int | None, info: ValidationInfo) -> int | None:
        told = info.data
        if value is None or not {"send_window_seconds", "margin_seconds", "recovery_horizon_seconds"} <= set(told):
            return value
        horizon, said = told["recovery_horizon_seconds"], ""
        if horizon is None:
            window, margin = (timedelta(seconds=told[name]) for name in ("send_window_seconds", "margin_seconds"))
            horizon = int(recovery_horizon(window, margin).total_seconds())
            said = f", {horizon} unless you set it"
        if value < horizon:
            raise ValueError(
                f"it must be at least {PREFIX}RECOVERY_HORIZON_SECONDS{said}: an inventory that forgets sooner leaves "
                "effects that nobody can settle"
            )
        return value


class WorkerSettings(OriginSettings, JournalSettings, InventoryClientSettings, InventorySigningSettings, RuleSettings):
    """What a worker needs: its origin, the journal, the inventory, and how long an effect may be sent and asked for."""

    unknown_alarm_seconds: Annotated[
        int,
        Field(
            gt=0,
            description="after how long an effect whose outcome is unknown is an alarm",
            examples=[UNKNOWN_ALARM_SECONDS],
        ),
    ] = UNKNOWN_ALARM_SECONDS
    metrics_address: MetricsAddress = None

    @property
    def unknown_after(self) -> timedelta:
        """How long an effect may be unknown before it is an alarm: no longer than until its key may be closed."""
        longest = self.send_window_seconds + self.margin_seconds
        return timedelta(seconds=min(self.unknown_alarm_seconds, longest))


def variable(field: str) -> str:
    """The environment variable that a settings field is read from."""
    return PREFIX + field.upper()


def _sentence(settings: type[_Settings], problem: ErrorDetails) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else ""
    name = variable(field)
    info = settings.model_fields.get(field)
    if info is None or info.examples is None:
        return f"{name} is not usable."
    example = f"{info.description}, for example {name}={info.examples[0]}."
    if problem["type"] == "missing":
        return f"{name} is not set: {example}"
    # pydantic's messages name the rule, never the input (checked by a test with a secret in every variable).
    rule = problem["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    return f"{name} is not usable ({rule}): {example}"
