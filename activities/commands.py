"""`effects.command`: a person's command about one effect, as a workflow's Updates give it."""

from temporalio import activity

from activities import contracts
from activities.beat import beating, crossing
from activities.contracts import CommandRequest
from services.effect_desk import EffectDesk
from services.effects.commands import CommandName, Ruling
from services.effects.errors import InvalidCommand
from services.effects.states import EffectState


class CommandActivities(contracts.CommandActivities):
    """Gives commands to the desk: the same one that the command line asks."""

    def __init__(self, desk: EffectDesk) -> None:
        self._desk = desk

    @activity.defn(name="effects.command")
    async def command(self, request: CommandRequest) -> Ruling:
        """Journal it, ask the provider, and answer what came of it."""
        with crossing():
            return await beating(self._command(request))

    async def _command(self, request: CommandRequest) -> Ruling:
        key, by, reason, said = request.key, request.by, request.reason, request.arguments
        match request.name:
            case CommandName.GIVE_UP:
                return await self._desk.give_up(key, by=by, reason=reason)
            case CommandName.RESOLVE:
                to = EffectState(said["wanted"])
                return await self._desk.resolve(key, to=to, evidence=said["evidence"], by=by, reason=reason)
            case CommandName.REDO:
                return await self._desk.redo(key, by=by, reason=reason, second=said.get("second", ""))
            case _:
                raise InvalidCommand(f"A workflow takes no {request.name}: counterfoil effects {request.name} {key}")
