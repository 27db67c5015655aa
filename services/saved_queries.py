"""The visibility queries that an operator keeps, and the links that open them in Temporal's UI.

The attributes of a closed run are frozen as they were: what was pending then may have been settled since, and only the
journal knows.
"""

from dataclasses import dataclass
from urllib.parse import quote

from services.effects.states import EffectState
from workflows.reconciliation import Reconciliation
from workflows.search_attributes import ALARM, EFFECT_STATE, PENDING_EFFECTS, UNKNOWN_SINCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQuery:
    """One query: what it finds, in words and for Temporal."""

    title: str
    query: str


SAVED_QUERIES = (
    SavedQuery(title="Pending effects", query=f"{PENDING_EFFECTS.name} > 0 AND ExecutionStatus = 'Running'"),
    SavedQuery(title="Unknown outcome", query=f"{UNKNOWN_SINCE.name} IS NOT NULL AND ExecutionStatus = 'Running'"),
    SavedQuery(
        title="In doubt, or under an alarm: a person decides",
        query=f"{EFFECT_STATE.name} IN ('{EffectState.IN_DOUBT}', '{ALARM}') AND ExecutionStatus = 'Running'",
    ),
    SavedQuery(
        title="Pending when closed, frozen since: ask `counterfoil effects show KEY`",
        query=f"{PENDING_EFFECTS.name} > 0 AND CloseTime IS NOT NULL",  # the UI shows != as =
    ),
    SavedQuery(
        title="Stuck: its workflow tasks fail, reset it to the last completed one",
        query="TemporalReportedProblems IN ('category=WorkflowTaskFailed') AND ExecutionStatus = 'Running'",
    ),
    SavedQuery(title="Sweeps", query=f"WorkflowType = '{Reconciliation.__name__}'"),
)


def link(ui_url: str, namespace: str, query: str) -> str:
    """The address of Temporal's UI that lists the workflows of a query."""
    return f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows?query={quote(query, safe='')}"


def saved_queries(ui_url: str, namespace: str) -> list[dict[str, str]]:
    """Every saved query with its link, as commands show them: title, query, url."""
    return [
        {"title": saved.title, "query": saved.query, "url": link(ui_url, namespace, saved.query)}
        for saved in SAVED_QUERIES
    ]
