"""PyTorch: the state of a model, its optimizer and what goes with them, as a session saves and resumes it.

    state = state_of(model, optimizer, scheduler, scaler, loader)
    contract = contract_of(state, name="my-run", batch=64)

What this module guarantees:

- Every item is a view of the tensor's own memory, by the tensor's qualified name: "model.layer.weight",
  "optimizer.layer.weight.exp_avg". What the next update needs and has no place in a checkpoint is refused by its name.
- Counters come from the objects: an attempt, an update and a skip from the optimizer and the scaler, `scheduler` and
  `cursor` from theirs; `microbatch` counts the forward passes whose gradients no attempt has used yet.
- The marks are odd while the optimizer steps and while the model runs forward, and they move with every in-place
  change and every draw in between. They cannot say that a change in *another* thread has begun, so that a save from
  another thread than the one that trains is refused, but for `digests=True`: then each tensor is also digested before
  and after, which costs three readings of it and needs no mark.
- A restore writes into the tensors that are there, so that what refers to them still does; an optimizer that has not
  made its state yet gets it from the checkpoint, without a step of its own. All of it, or nothing.
"""

import glob
import inspect
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .boxes import Shape
from .contract import FORMAT, Contract
from .dtypes import Array, name_of
from .errors import Incompatible, ManifestInvalid
from .state import Item, State, differing
from .torch_run import COUNTERS, Loader, Run, Timeline, role_of
from .torch_tensors import box_of, tensor_of

Streams = Literal["torch", "python", "numpy"]
_TORCH_ALONE: Final[Collection[Streams]] = frozenset({"torch"})


class Samples:
    """The order of a run's samples: a function of a seed and of how many were consumed, in any layout.

    Args:
        size: samples of an epoch.
        batch: samples of an attempt, of all ranks together.
        seed: of the epochs' orders; training draws from another stream.
        rank: this rank takes every world-th sample of a batch, beginning here.
        world: how many ranks there are.
    """

    def __init__(self, size: int, batch: int, *, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        self.cursor = 0
        self._fixed = {"size": size, "batch": batch, "seed": seed}
        self._rank, self._world = rank, world
        self._orders: dict[int, Tensor] = {}

    def take(self) -> Tensor:
        """The numbers of this rank's samples of the next batch; the cursor moves by the whole batch."""
        first = self.cursor
        self.cursor += self._fixed["batch"]
        return torch.tensor([self._at(at) for at in range(first + self._rank, self.cursor, self._world)])

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and what makes the order."""
        return {"cursor": self.cursor, **self._fixed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at another cursor of the same order.

        Raises:
            ValueError: it is of another order.
        """
        if different := [f"{name} {state.get(name)} != {own}" for name, own in self._fixed.items()
                         if state.get(name) != own]:  # fmt: skip
            raise ValueError(f"the samples have another order: {', '.join(different)}")
        self.cursor = state["cursor"]

    def _at(self, place: int) -> int:
        epoch, position = divmod(place, self._fixed["size"])
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed(self._fixed["seed"] * 1_000_003 + epoch)
            self._orders = {epoch: torch.randperm(self._fixed["size"], generator=generator)}
        return int(self._orders[epoch][position])


class TorchState(State):
    """The state of a model and what trains it; `state_of` makes it."""

    _run: Run
    _room: Mapping[str, tuple[str, Shape]] | None

    def __init__(self, run: Run, *, room: Mapping[str, tuple[str, Shape]] | None = None) -> None:
        # A State is frozen; what this one refers to lives on.
        object.__setattr__(self, "_run", run)
        object.__setattr__(self, "_room", room)

    @property
    def items(self) -> Mapping[str, Item]:
        """Every tensor and generator, as it is now."""
        return self._run.items(self._room)

    @property
    def versions(self) -> Timeline:
        """The marks and counters."""
        return self._run.timeline

    @property
    def values(self) -> MutableMapping[str, Any]:
        """Param groups and the rest, as they are now."""
        return self._run.values()

    @property
    def updates(self) -> int:
        """How many updates were applied."""
        return self._run.timeline["updates"]

    def wait_ready(self) -> None:
        """Every stream of every device is done.

        Raises:
            SourceChanged: another thread trains, whose changes no mark announces.
            InvariantViolation: the scaler has stepped and was not updated.
        """
        self._run.wait_ready()

    def facing(self, stored: Mapping[str, tuple[str, Shape]]) -> "TorchState":
        """With places for what the optimizer makes in its first step, and without what the checkpoint has not."""
        return TorchState(self._run, room=stored)

    def check(self, arrays: Mapping[str, Array], *, values: Mapping[str, Any], keep: Collection[str] = ()) -> None:
        """Whether all of it could be swapped in: arrays, and values into their objects.

        Raises:
            Incompatible: every difference at once.
        """
        try:
            different = self._run.differences(values)
        except ManifestInvalid as error:  # of the live objects: no checkpoint is damaged by it
            raise differing([str(error)]) from error
        for name, array in arrays.items():
            if name == "rng.cpu":
                with suppress(RuntimeError, TypeError):
                    torch.Generator().set_state(tensor_of(array).clone())
                    continue
                different.append(f"{name} is no state of torch's generator")
        for name, tensor in ((name, tensor) for _, name, tensor in self._run.in_model()):
            if any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True)):
                different.append(f"{name} is expanded: several elements are one, and it cannot be written")
        try:
            super().check(arrays, values=values, keep=keep)
        except Incompatible as error:
            different += error.differences
        if different:
            raise differing(different)

    def adopt(
        self,
        *,
        arrays: Mapping[str, Array],
        versions: Mapping[str, int],
        values: Mapping[str, Any],
        keep: Collection[str] = (),
    ) -> None:
        """Swap a restored cut in: all of it or, when anything does not fit, nothing.

        Raises:
            Incompatible: every difference at once; the live state is as it was.
        """
        stored = {name: (name_of(array), tuple(array.shape)) for name, array in arrays.items()}
        room = stored | dict.fromkeys(self.items.keys() & set(keep), ("", ()))
        self.facing(room).check(arrays, values=values, keep=keep)
        self._run.give(values)
        self._run.write(arrays)
        self._run.timeline.adopt(versions)


def state_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Loader | None = None,
    *,
    items: Mapping[str, Item] | None = None,
    values: MutableMapping[str, Any] | None = None,
    rng: Collection[Streams] = _TORCH_ALONE,
    digests: bool = False,
) -> TorchState:
    """The state of a run; call it once, before the first step: it counts from there.

    Args:
        model: what is called; wrapped by DistributedDataParallel or torch.compile, its names are those inside.
        optimizer: of the model's parameters.
        scheduler: any that has state_dict.
        scaler: torch.amp.GradScaler.
        loader: what has a cursor: `Samples`, or something of the program's own.
        items: arrays of the program's own, by name.
        values: small values of the program's own, by role or `role/name`; a restore replaces what is in it.
        rng: whose generators are kept: torch's (processor and device), Python's `random`, numpy's global one.
        digests: digest each tensor before and after a save instead of believing the marks; see above.

    Raises:
        ManifestInvalid: something of it has no place in a checkpoint.
    """
    inner = model
    while (wrapped := getattr(inner, "_orig_mod", None) or _parallel(inner)) is not None:
        inner = wrapped
    parameters, buffers = dict(inner.named_parameters(remove_duplicate=False)), dict(inner.named_buffers())
    kept = inner.state_dict(keep_vars=True)
    if other := sorted(kept.keys() - parameters.keys() - dict(inner.named_buffers(remove_duplicate=False)).keys()):
        raise ManifestInvalid(
            f"The model's state_dict has {', '.join(other)}, neither parameters nor buffers: give them as items or "
            "values of your own."
        )
    return TorchState(
        Run(
            outer=model, model=inner, buffers=frozenset(buffers.keys() & kept.keys()), optimizer=optimizer,
            scheduler=scheduler, scaler=scaler, loader=loader, rng=frozenset(rng), given_items=items or {},
            given_values={} if values is None else values, digests=digests,
        )
    )  # fmt: skip


def contract_of(
    state: TorchState,
    *,
    name: str = "torch",
    boundary: str = "after an attempt: gradients used, scaler updated, scheduler stepped, nothing in flight",
    batch: int | None = None,
    scheduler_steps: Literal["update", "otherwise"] = "update",
    placements: Mapping[str, str] | None = None,
    optimizer_roles: Collection[str] | None = None,
) -> Contract:
    """A contract for a state, the same at every start; `document()` is the JSON to change by hand.

    Args:
        state: as `state_of` made it, also before the first step.
        name: for people.
        boundary: in words.
        batch: samples of an attempt, of all ranks together: `cursor == attempts * batch` is then a relation.
        scheduler_steps: once an update, which is then a relation; or otherwise.
        placements: of a role, where it is another one: {"buffer": "per_contributor"} for the running statistics of
            BatchNorm, which differ between ranks.
        optimizer_roles: what the optimizer keeps once it has stepped, where that cannot be tried on a small copy.

    Raises:
        ManifestInvalid: the optimizer could not be tried.
    """
    run = state._run  # noqa: SLF001 - of this module
    versions = list(COUNTERS)
    relations = ["updates + skips == attempts", "microbatch == 0"]
    roles: dict[str, Any] = {"param": {"required": True, "versions": ["updates"]}}
    if run.buffers:
        roles["buffer"] = {"required": True, "versions": ["forwards"], "finite": "allow"}  # masks hold -inf
    if run.optimizer is not None:
        roles["config"] = {"required": True}
        for role in sorted(_optimizer_roles(run.optimizer) if optimizer_roles is None else optimizer_roles):
            roles[role] = {"required": True, "versions": ["updates"], "absent_if": "updates == 0"}
    if run.scheduler is not None:
        roles["scheduler"] = {"required": True}
        if run.scheduled() is not None:
            versions.append("scheduler")
            roles["scheduler"]["agrees"] = {"state.last_epoch": "scheduler"}
            relations += ["scheduler == updates"] if scheduler_steps == "update" else []
    if run.scaler is not None:
        roles["scaler"] = {"required": True}
    if run.loader is not None:
        versions.append("cursor")
        roles["cursor"] = {"required": True, "agrees": {"cursor": "cursor"}}
        relations += [] if batch is None else ["cursor == attempts * batch"]
    if run.rng:
        roles["rng"] = {"required": True, "placement": "per_contributor"}
    own = {each.role for each in run.given_items.values()} | {each.partition("/")[0] for each in run.given_values}
    for role in sorted(own):
        roles.setdefault(role, {"required": True})
    _place(run, roles, placements or {})
    return Contract.load(
        {
            "format": FORMAT,
            "name": name,
            "boundary": boundary,
            "versions": dict.fromkeys(versions, "shared"),
            "constants": {} if batch is None else {"batch": batch},
            "roles": roles,
            "relations": relations,
            "profiles": {"resume": list(roles), "weights": [each for each in roles if each in {"param", "buffer"}]},
            "reproducibility": "exact",
        }
    )


def shared_launch(group: Any = None) -> str:
    """A fresh launch id, equal on all ranks of an initialized torch.distributed: nobody has to hand one on.

    Args:
        group: the process group; None: the default one.
    """
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    generator = torch.Generator()
    generator.seed()  # from the system, and not from the run's stream
    drawn = torch.randint(256, (16,), dtype=torch.uint8, generator=generator).to(device)
    dist.broadcast(drawn, group=group, group_src=0)
    return bytes(drawn.cpu().tolist()).hex()


def _parallel(module: torch.nn.Module) -> torch.nn.Module | None:
    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else None


def _place(run: Run, roles: Mapping[str, dict[str, Any]], placements: Mapping[str, str]) -> None:
    """Where the roles are: what follows a sharded parameter is sharded as it is."""
    sharded = [name for name, parameter in run.parameters.items() if box_of(parameter, name) is not None]
    for role, said in roles.items():
        follows = role in {"param", "moment_m", "moment_v", "master"}
        if role in placements:
            said["placement"] = placements[role]
        elif follows and len(sharded) == len(run.parameters):
            said["placement"] = "sharded"
        else:
            said.setdefault("placement", "replicated")
            if follows and sharded:
                form = "model.{}" if role == "param" else "optimizer.{}.*"
                said["patterns"] = {form.format(glob.escape(name)): "sharded" for name in sharded}


def _optimizer_roles(optimizer: torch.optim.Optimizer) -> set[str]:
    """The roles of what an optimizer keeps after a step, tried on a parameter that nobody else has."""
    known, roles = inspect.signature(type(optimizer)).parameters, set()
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key in known and key != "params"}
        settings = {key: float(value) if isinstance(value, Tensor) else value for key, value in settings.items()}
        parameter = torch.nn.Parameter(torch.zeros(2, 2))
        parameter.grad = torch.zeros(2, 2)
        try:
            tried: Any = type(optimizer)(
                [parameter], **{**settings, **({"capturable": False} if "capturable" in settings else {})}
            )
            tried.step()
        except Exception as error:
            raise ManifestInvalid(
                f"What {type(optimizer).__name__} keeps could not be tried: {error}. Say it: "
                "contract_of(..., optimizer_roles=['moment_m', 'optimizer_step'])."
            ) from error
        kept = tried.state[parameter]
        roles |= {role_of(key) for key, content in kept.items() if isinstance(content, Tensor)}
    return roles
