"""Activities that may take their time: a beat that comes late on a busy machine is no second try."""

from datetime import timedelta
from typing import Any

from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

_LONG = timedelta(seconds=90)


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002 - Temporal's name
        """Schedule it with the time-outs of somebody who can wait."""
        input.start_to_close_timeout = _LONG
        input.heartbeat_timeout = _LONG
        return super().start_activity(input)


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Stand between the workflow and the server."""
        super().init(_Outbound(outbound))


class Patience(Interceptor):
    """Workflows whose activities are not tried again because their process had to wait for a processor."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        """Temporal's hook."""
        del input
        return _Inbound
