"""Ids are one for a whole namespace: an incident's may be taken by something that is not this matter."""

import pytest

from services.incident_desk import start_incident
from services.temporal import task_queue
from tests.faults.harness import Case
from tests.faults.workflows import Order, OrderInput

pytestmark = pytest.mark.temporal


async def test_an_incident_is_never_attached_to_a_workflow_of_another_type(case: Case) -> None:
    """An author's workflow has the id: the parts would never be reserved, and "attached" would say they are."""
    order = OrderInput(origin=case.origin, scope=case.scope(), wanted=[])
    await case.client.start_workflow(Order.run, order, id=case.scope(), task_queue=task_queue(case.origin))
    started = await case.start()
    assert started.what == "refused"
    assert "Order" in started.detail


async def test_an_incident_is_never_attached_to_another_deployments_incident(case: Case) -> None:
    """One line in two deployments of one namespace: the second one's effects have other keys, and nobody does them."""
    assert (await case.start()).what == "started"
    started = await start_incident(case.client, "elsewhere", case.journal, case.line())
    assert started.what == "refused"
    assert task_queue(case.origin) in started.detail
    assert (await case.start()).what == "attached"
