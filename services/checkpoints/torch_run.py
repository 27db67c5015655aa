"""The objects of one run of torch, and where they stand: what `torch.state_of` makes a state of."""

import random
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .boxes import Shape
from .dtypes import Array, dtype_of
from .errors import Incompatible, InvariantViolation, ManifestInvalid, SourceChanged
from .records import digest_of
from .state import Item, Versioned
from .tagged import tagged, untagged
from .torch_tensors import array_of, box_of, local_of, small_tensor, tensor_of, tensor_told

COUNTERS: Final = ("attempts", "updates", "skips", "forwards", "microbatch")

# An optimizer's tensors by their names in it. What is not here is a moment_v: whatever else it accumulates.
_ROLE_OF_KEY: Final = {
    "step": "optimizer_step",
    "exp_avg": "moment_m",
    "momentum_buffer": "moment_m",
    "grad_avg": "moment_m",
    "master": "master",
    "master_param": "master",
}


def role_of(key: str) -> str:
    """The contract's role of what an optimizer keeps under a name."""
    return _ROLE_OF_KEY.get(key, "moment_v")


class Loader(Protocol):
    """Where a run's samples come from, as far as a checkpoint is concerned: `Samples` is one.

    Attributes:
        cursor: how many samples the whole run has consumed; not how many were read ahead.
    """

    cursor: int

    def state_dict(self) -> dict[str, Any]:
        """What else decides which sample comes next."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, or raise ValueError and change nothing."""


class Timeline:
    """The marks and counters of a run, from hooks on its objects."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._own = Versioned(dict.fromkeys(COUNTERS, 0), sources=("model", "optimizer"))
        self.trained_in: int | None = None  # the thread
        self.awaits_update = False  # the scaler's
        run.outer.register_forward_pre_hook(lambda *_: self._own.begin("model"))
        run.outer.register_forward_hook(self._after_forward, always_call=True)
        if run.optimizer is not None:
            run.optimizer.register_step_pre_hook(lambda *_: self._own.begin("optimizer"))
            run.optimizer.register_step_post_hook(self._after_step)
        if run.scaler is not None and run.scaler.is_enabled():
            self._watch_scaler(run.scaler)

    def __getitem__(self, name: str) -> int:
        return self._own[name]

    def read(self) -> Mapping[str, int]:
        """Beside the hooks' marks: every in-place change of a tensor, and every draw, moves one."""
        # Nothing but this private counter tells of a change that no hook saw.
        changed: int = sum(local_of(each)._version for each in self._run.tensors() if not each.is_inference())  # noqa: SLF001
        drawn = digest_of(b"".join(state.numpy().tobytes() for _, state in self._run.generators()))
        return {**self._own.read(), "tensors": 2 * changed, "rng": 2 * int(drawn[:15], 16)}

    def timeline(self) -> Mapping[str, int]:
        """Where the run stands."""
        counted = {"scheduler": self._run.scheduled(), "cursor": self._run.consumed()}
        return {**self._own.timeline(), **{name: count for name, count in counted.items() if count is not None}}

    def adopt(self, timeline: Mapping[str, int]) -> None:
        """Take over a restored cut's counters; the scheduler and the loader have theirs from their own state."""
        self._own.adopt({name: timeline.get(name, 0) for name in COUNTERS})
        self.awaits_update = False

    def _after_forward(self, module: Any, arguments: Any, result: Any) -> None:
        del arguments
        if result is not None and module.training and torch.is_grad_enabled():  # None: it failed, and counts nowhere
            self._own.advance(forwards=1, microbatch=1)
        self._own.end("model")

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        # A fused optimizer is called also after an overflow, and does nothing then.
        overflow = getattr(optimizer, "found_inf", None)
        skipped = overflow is not None and float(overflow) > 0
        self.trained_in = threading.get_ident()
        self._attempted(skipped=skipped)
        self._own.end("optimizer")

    def _attempted(self, *, skipped: bool) -> None:
        self._own.advance(attempts=1, updates=not skipped, skips=skipped)
        self._own.set(microbatch=0)

    def _watch_scaler(self, scaler: Any) -> None:
        """An overflow calls no step of the optimizer's: the scaler alone knows of that attempt."""
        step, update = scaler.step, scaler.update

        def stepped(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            before = self._own["attempts"]
            result = step(optimizer, *arguments, **named)
            if optimizer is self._run.optimizer:
                self.awaits_update = True
                if self._own["attempts"] == before:
                    with self._own.mutation("optimizer"):
                        self._attempted(skipped=True)
            return result

        def updated(*arguments: Any, **named: Any) -> None:
            update(*arguments, **named)
            self.awaits_update = False

        scaler.step, scaler.update = stepped, updated


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """The objects of one run, looked at anew each time: an optimizer makes its state late, a scheduler sets rates."""

    outer: torch.nn.Module
    model: torch.nn.Module
    buffers: frozenset[str]
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    scaler: Any
    loader: Loader | None
    rng: frozenset[str]
    given_items: Mapping[str, Item]
    given_values: MutableMapping[str, Any]
    digests: bool
    names: Mapping[Tensor, str] = field(init=False)
    parameters: Mapping[str, Tensor] = field(init=False)
    timeline: Timeline = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())
        self.names = {parameter: name for name, parameter in self.parameters.items()}
        for at, group in enumerate([] if self.optimizer is None else self.optimizer.param_groups):
            if any(parameter not in self.names for parameter in group["params"]):
                raise ManifestInvalid(
                    f"The optimizer's group {at} holds a parameter that the model does not name: give state_of the "
                    "module that has all of them."
                )
        self.timeline = Timeline(self)

    # What is there

    def in_model(self) -> Iterator[tuple[str, str, Tensor]]:
        """Role, name and tensor of the model's own; what two names share stands under the first."""
        for name, parameter in self.model.named_parameters():
            yield "param", f"model.{name}", parameter
        for name, buffer in self.model.named_buffers():
            if name in self.buffers:
                yield "buffer", f"model.{name}", buffer

    def in_optimizer(self) -> Iterator[tuple[Tensor, str, Any]]:
        """Parameter, key and content of what the optimizer keeps for it."""
        if self.optimizer is not None:
            for parameter, kept in self.optimizer.state.items():
                if parameter not in self.names:
                    raise ManifestInvalid("The optimizer keeps state of a parameter that the model does not name.")
                for key, content in kept.items():
                    yield parameter, str(key), content

    def tensors(self) -> Iterator[Tensor]:
        """All of them."""
        for _, _, tensor in self.in_model():
            yield tensor
        for _, _, content in self.in_optimizer():
            if isinstance(content, Tensor):
                yield content

    def devices(self) -> set[torch.device]:
        """Where tensors are, beside the processor's memory."""
        return {tensor.device for tensor in self.tensors() if tensor.device.type not in {"cpu", "meta"}}

    def generators(self) -> Iterator[tuple[str, Tensor]]:
        """The states of torch's generators that this process draws from."""
        if "torch" in self.rng:
            yield "rng.cpu", torch.get_rng_state()
            for device in sorted(self.devices(), key=str):
                yield f"rng.{device.type}", torch.get_device_module(device).get_rng_state(device)

    def scheduled(self) -> int | None:
        """How often the scheduler stepped, as it says."""
        counted = getattr(self.scheduler, "last_epoch", None)
        return counted if isinstance(counted, int) else None

    def consumed(self) -> int | None:
        """The loader's cursor."""
        return None if self.loader is None else int(self.loader.cursor)

    def wait_ready(self) -> None:
        """Every device is done, and this is a place where a save may be.

        Raises:
            SourceChanged: another thread trains, whose changes no mark announces.
            InvariantViolation: the scaler has stepped and was not updated.
        """
        for device in sorted(self.devices(), key=str):
            torch.get_device_module(device).synchronize(device)
        timeline = self.timeline
        if not self.digests and timeline.trained_in not in {None, threading.get_ident()}:
            raise SourceChanged(
                "The optimizer steps in another thread than the one that saves, and torch does not say when a change "
                "begins there. Nothing was published: save from the thread that trains, or use "
                "state_of(..., digests=True)."
            )
        if timeline.awaits_update:
            raise InvariantViolation(
                "scaler.step was called, and scaler.update was not: this is no boundary. Nothing was published; save "
                "after the update."
            )

    # Items

    def items(self, room: Mapping[str, tuple[str, Shape]] | None) -> dict[str, Item]:
        """Every item as it is now.

        Args:
            room: what a checkpoint has, by name; the optimizer's part is then what that one has. None: what there is.
        """
        found = dict(self.given_items)
        fetch = room is None
        for role, name, tensor in self.in_model():
            found[name] = self._item(role, tensor, name, fetch, "optimizer" if role == "param" else "model")
        for parameter, key, content in self.in_optimizer():
            name = f"optimizer.{self.names[parameter]}.{key}"
            if isinstance(content, Tensor) and (room is None or name in room):
                found[name] = self._item(role_of(key), content, name, fetch, "optimizer")
        for name, state in self.generators():
            found[name] = Item(role="rng", array=state.numpy(), source=None if self.digests else "rng")
        for name in (room or {}).keys() - found.keys():
            late = self._late(name, *(room or {})[name])
            if late is not None:
                found[name] = late
        return found

    def _item(self, role: str, tensor: Tensor, name: str, fetch: bool, source: str) -> Item:
        return Item(
            role=role,
            array=array_of(tensor, name, fetch=fetch),
            box=box_of(tensor, name),
            global_shape=tuple(tensor.shape),
            source=None if self.digests else source,
        )

    def _late(self, name: str, dtype: str, shape: Shape) -> Item | None:
        """A place for what the optimizer has not made yet; None when it is no such thing."""
        parameter, key = self.owner(name)
        if parameter is None:
            return None
        shaped = shape == tuple(parameter.shape)
        local = tuple(local_of(parameter).shape) if shaped else shape
        return Item(
            role=role_of(key),
            array=np.empty(local, dtype_of(dtype)),
            box=box_of(parameter, name) if shaped else None,
            global_shape=shape,
        )

    def owner(self, name: str) -> tuple[Tensor | None, str]:
        """The parameter and the key of an optimizer's item."""
        first, _, rest = name.partition(".")
        owned, _, key = rest.rpartition(".")
        if first != "optimizer" or self.optimizer is None:
            return None, key
        return self.parameters.get(owned), key

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Put arrays into the tensors, in place; everything was checked."""
        live = {name: tensor for _, name, tensor in self.in_model()}
        kept: dict[str, tuple[Tensor, str]] = {}
        for parameter, key, content in self.in_optimizer():
            if isinstance(content, Tensor):
                name = f"optimizer.{self.names[parameter]}.{key}"
                live[name], kept[name] = content, (parameter, key)
        with torch.no_grad():
            for name, (parameter, key) in kept.items():
                if name not in arrays and self.optimizer is not None:
                    del self.optimizer.state[parameter][key]
            for name, array in arrays.items():
                if name in live:
                    local_of(live[name]).copy_(tensor_of(array))
                elif name in self.given_items:
                    np.copyto(self.given_items[name].array, array, casting="no")
                elif name.startswith("rng."):
                    self._draw_from(name, tensor_of(array))
                else:
                    self._make(name, array)

    def _draw_from(self, name: str, state: Tensor) -> None:
        if name == "rng.cpu":
            torch.set_rng_state(state.clone())
            return
        for device in self.devices():
            if f"rng.{device.type}" == name:
                torch.get_device_module(device).set_rng_state(state.clone(), device)

    def _make(self, name: str, array: Array) -> None:
        """The optimizer's state as it would have made it, where it would be."""
        parameter, key = self.owner(name)
        if parameter is None or self.optimizer is None:
            raise ValueError(f"{name} was checked, and has no place.")
        local, new = local_of(parameter), tensor_of(array)
        group = next(each for each in self.optimizer.param_groups if any(one is parameter for one in each["params"]))
        # Where torch itself keeps it: a step count that no kernel reads stays with the processor.
        on_device = key != "step" or group.get("capturable") or group.get("fused")
        if new.shape == local.shape:
            made = torch.empty_like(local, dtype=new.dtype).copy_(new)
            if isinstance(parameter, DTensor):
                made = DTensor.from_local(
                    made, parameter.device_mesh, parameter.placements, run_check=False,
                    shape=parameter.shape, stride=parameter.stride(),
                )  # fmt: skip
        else:
            made = new.clone().to(local.device if on_device else "cpu")
        self.optimizer.state[parameter][key] = made

    # Values

    def values(self) -> dict[str, Any]:
        """The small values as they are now."""
        found = dict(self.given_values)
        if self.optimizer is not None:
            groups = [
                {**group, "params": [self.names[parameter] for parameter in group["params"]]}
                for group in self.optimizer.param_groups
            ]
            kept: dict[str, dict[str, Any]] = {}
            for parameter, key, content in self.in_optimizer():
                if not isinstance(content, Tensor):
                    kept.setdefault(self.names[parameter], {})[key] = content
            found["config/optimizer"] = {"class": _class(self.optimizer), "groups": groups, "kept": kept}
        if self.scheduler is not None:
            found["scheduler"] = {"class": _class(self.scheduler), "state": self.scheduler.state_dict()}
        if self.scaler is not None:
            found["scaler"] = self.scaler.state_dict()
        if self.loader is not None:
            found["cursor"] = {**self.loader.state_dict(), "cursor": self.consumed()}
        if "python" in self.rng:
            found["rng/python"] = random.getstate()
        if "numpy" in self.rng:
            name, keys, *rest = cast(tuple[Any, ...], np.random.get_state(legacy=True))  # noqa: NPY002 - this is the stream that is asked for
            found["rng/numpy"] = (name, keys.tolist(), *rest)
        return {
            name: value if name in self.given_values else tagged(value, name, other=small_tensor)
            for name, value in found.items()
        }

    def differences(self, values: Mapping[str, Any]) -> list[str]:
        """Why these values could not be given to the objects, as far as can be said before."""
        own, different = self.values(), []
        for name in sorted(own.keys() - self.given_values.keys()):
            if name not in values:
                if not name.startswith("rng/"):  # in another layout they begin anew, when the caller says so
                    different.append(f"value {name} is not in the checkpoint")
            elif not name.startswith("rng/"):
                different += _unlike(name, own[name], values[name])
        others = values.keys() - own.keys() - self.given_values.keys()
        taken = {"config/optimizer", "scheduler", "scaler", "cursor", "rng/python", "rng/numpy"}
        return different + [
            f"value {name} is in the checkpoint and has no place here" for name in sorted(others & taken)
        ]

    def give(self, values: Mapping[str, Any]) -> None:
        """Give values to the objects: all, or none.

        Raises:
            Incompatible: an object does not take its part.
        """
        before = {**self.values(), **self.given_values}
        try:
            self._give(values)
        except Exception as error:
            self._give(before)
            raise Incompatible(
                f"The checkpoint's values were not taken: {type(error).__name__}: {error}. Nothing was changed.",
                differences=(str(error),),
            ) from error

    def _give(self, values: Mapping[str, Any]) -> None:
        own = self.values().keys() - self.given_values.keys()
        told = {name: untagged(values[name], other=tensor_told) for name in own & values.keys()}
        if self.loader is not None:
            self.loader.load_state_dict(dict(told["cursor"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(told["scheduler"]["state"])
        if self.scaler is not None and told["scaler"]:
            self.scaler.load_state_dict(told["scaler"])
        if self.optimizer is not None:
            self._give_optimizer(self.optimizer, told["config/optimizer"])
        if "rng/python" in told:
            random.setstate(told["rng/python"])
        if "rng/numpy" in told:
            np.random.set_state(told["rng/numpy"])  # noqa: NPY002 - as above
        rest = {name: value for name, value in values.items() if name not in told}
        self.given_values.clear()
        self.given_values.update(rest)

    def _give_optimizer(self, optimizer: torch.optim.Optimizer, told: Mapping[str, Any]) -> None:
        for live, saved in zip(optimizer.param_groups, told["groups"], strict=True):
            for key, value in saved.items():
                if isinstance(live.get(key), Tensor) and isinstance(value, Tensor):
                    live[key].copy_(value)  # what was captured with it reads it there
                elif key != "params":
                    live[key] = value
        for parameter, key, content in list(self.in_optimizer()):
            if not isinstance(content, Tensor):
                del optimizer.state[parameter][key]
        for name, kept in told["kept"].items():
            optimizer.state[self.parameters[name]].update(kept)


def _class(of: object) -> str:
    return f"{type(of).__module__}.{type(of).__qualname__}"


def _unlike(name: str, own: Any, saved: Any) -> list[str]:
    """How a saved value cannot be the live object's: another class, other groups, other settings."""
    if not isinstance(saved, Mapping):
        return [f"value {name} is not an object"]
    different = [] if saved.get("class") == own.get("class") else [
        f"{name} is of {saved.get('class')}, here {own.get('class')}"
    ]  # fmt: skip
    pairs = [(name, own, saved)]
    if name == "scheduler":
        pairs.append((f"{name}.state", own["state"], saved.get("state", {})))
    if name == "config/optimizer":
        groups = saved.get("groups", [])
        if len(groups) != len(own["groups"]):
            return [*different, f"{name} has {len(groups)} groups, here {len(own['groups'])}"]
        pairs += [(f"{name}.groups[{at}]", *pair) for at, pair in enumerate(zip(own["groups"], groups, strict=True))]
    for where, mine, theirs in pairs:
        if lost := sorted(mine.keys() ^ theirs.keys()):
            different.append(f"{where}: {', '.join(lost)} only on one side")
        elif theirs.get("params") != mine.get("params"):
            different.append(f"{where} is of other parameters: {theirs.get('params')}, here {mine.get('params')}")
    return different
