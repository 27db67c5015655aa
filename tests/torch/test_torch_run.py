"""What a state of torch refuses, and that it refuses all or nothing: judged by the objects' own bytes."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from services.checkpoints.capture import Captured, capture
from services.checkpoints.contract import Contract
from services.checkpoints.errors import Incompatible, InvariantViolation, ManifestInvalid, SourceChanged
from services.checkpoints.saving import check_positions
from services.checkpoints.staging import Staging
from services.checkpoints.torch import Samples, TorchState, contract_of, state_of


class Run:
    """One process's run."""

    def __init__(self, *, momentum: bool = True, **given: Any) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(self.net.parameters(), lr=torch.tensor(0.01))
            if momentum
            else torch.optim.SGD(self.net.parameters(), lr=0.01)
        )
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 2, 5])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.samples = Samples(10, 4)
        self.state = state_of(self.net, self.optimizer, self.scheduler, self.scaler, self.samples, **given)
        self.contract = contract_of(self.state, batch=4)

    def backward(self) -> None:
        """Forward and backward of one batch."""
        x = self.samples.take().float()[:, None].expand(4, 4) / 7
        self.scaler.scale(self.net(x.sin()).square().mean()).backward()

    def attempt(self) -> None:
        """A whole attempt."""
        self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def told(self) -> tuple[Any, ...]:
        """Everything of it."""
        arrays = {name: item.array.tobytes() for name, item in self.state.items.items()}
        return arrays, repr(self.state.values), dict(self.state.versions.timeline())


def captured(run: Run, *, at: Any = lambda _: None) -> Captured:
    """A capture that the contract accepts."""
    taken = capture(run.state, Staging(), run.contract, at=at)
    check_positions(run.contract, {"0": taken.versions})
    return taken


def arrays(taken: Captured) -> dict[str, np.ndarray[Any, Any]]:
    """Its copies, as a restore reads them."""
    return {copy.name: np.frombuffer(bytearray(copy.buffer), dtype=copy.dtype).reshape(copy.global_shape)
            for copy in taken.copies}  # fmt: skip


def test_what_was_captured_is_what_comes_back() -> None:
    """Into another process's objects, which have made no step: moments, steps, a rate that is a tensor, a Counter."""
    one, other = Run(), Run()
    for _ in range(3):
        one.attempt()
    taken = captured(one)
    rate = other.optimizer.param_groups[0]["lr"]
    other.state.adopt(arrays=arrays(taken), versions=taken.versions, values=taken.values)
    assert other.told() == one.told()
    assert other.optimizer.param_groups[0]["lr"] is rate  # what refers to it sees the restored one
    assert other.optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert dict(other.scheduler.milestones) == {2: 2, 5: 1}
    for run in (one, other):
        run.attempt()
    assert other.told() == one.told()


def test_a_restore_writes_into_the_tensors_that_are_there() -> None:
    """What refers to them, such as a process group's buckets, still does; and torch knows that they changed."""
    one, other = Run(), Run()
    for run in (one, other):
        run.attempt()
    taken = captured(one)
    held = [*other.net.state_dict(keep_vars=True).values()]
    places = [(each.data_ptr(), each._version) for each in held]
    other.state.adopt(arrays=arrays(taken), versions=taken.versions, values=taken.values)
    assert [each.data_ptr() for each in held] == [place for place, _ in places]
    assert all(each._version > version for each, (_, version) in zip(held, places, strict=True))


def _without_a_moment(found: dict[str, Any], values: dict[str, Any]) -> None:
    del values
    del found["optimizer.0.weight.exp_avg"]
    found["optimizer.nobody.exp_avg"] = np.zeros(3, np.float32)


def _other_shape(found: dict[str, Any], values: dict[str, Any]) -> None:
    del values
    found["model.0.weight"] = np.zeros((3, 5), np.float32)


def _no_generator(found: dict[str, Any], values: dict[str, Any]) -> None:
    del values
    found["rng.cpu"] = np.zeros_like(found["rng.cpu"])


def _other_optimizer(found: dict[str, Any], values: dict[str, Any]) -> None:
    del found
    values["config/optimizer"]["class"] = "torch.optim.sgd.SGD"


def _other_groups(found: dict[str, Any], values: dict[str, Any]) -> None:
    del found
    values["config/optimizer"]["groups"][0]["params"].reverse()


def _other_order(found: dict[str, Any], values: dict[str, Any]) -> None:
    del found
    values["cursor"]["seed"] = 8


def _bad_tag(found: dict[str, Any], values: dict[str, Any]) -> None:
    del found
    values["scheduler"]["state"]["milestones"] = {"!set": []}


def _kept_for_nobody(found: dict[str, Any], values: dict[str, Any]) -> None:
    del found
    values["config/optimizer"]["kept"] = {"nobody": {"called": 1}}  # found out when all others have taken theirs


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_without_a_moment, "optimizer.nobody.exp_avg: not in the state"),
        (_other_shape, r"model.0.weight: float32\[3, 5\] in the checkpoint"),
        (_no_generator, "rng.cpu is no state of torch's generator"),
        (_other_optimizer, "config/optimizer is of torch.optim.sgd.SGD"),
        (_other_groups, "is of other parameters"),
        (_other_order, "seed 8 != 0"),
        (_bad_tag, "!set"),
        (_kept_for_nobody, "nobody"),
    ],
)
def test_what_does_not_fit_changes_nothing(spoil: Any, named: str) -> None:
    """Not a tensor, not a rate, not the cursor: the run goes on as if nobody had asked."""
    one, other = Run(), Run()
    for run in (one, one, other):
        run.attempt()
    taken = captured(one)
    found, values = arrays(taken), dict(captured(one).values)
    spoil(found, values)
    before = other.told()
    with pytest.raises(Incompatible, match=named):
        other.state.adopt(arrays=found, versions=taken.versions, values=values)
    assert other.told() == before


def test_a_save_between_scaler_step_and_update_is_no_boundary() -> None:
    """The scale would be of another attempt than the weights."""
    run = Run()
    run.backward()
    run.scaler.step(run.optimizer)
    with pytest.raises(InvariantViolation, match=r"scaler\.update was not"):
        captured(run)


def test_a_save_inside_an_accumulation_is_refused_with_both_numbers() -> None:
    """The gradients of a forward pass that no step has used are in no item."""
    run = Run()
    run.attempt()
    with torch.no_grad():
        run.net(torch.zeros(4, 4))  # an evaluation accumulates nothing
    captured(run)
    run.backward()
    with pytest.raises(InvariantViolation, match="microbatch 1 != 0"):
        captured(run)


def test_a_scheduler_that_steps_without_an_update_is_refused_with_both_numbers() -> None:
    """C26: an overflow skips the update, and nobody told the scheduler."""
    run = Run()
    run.attempt()
    run.backward()
    next(iter(run.net.parameters())).grad.fill_(float("inf"))
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.scheduler.step()
    timeline = run.state.versions.timeline()
    assert (timeline["attempts"], timeline["updates"], timeline["skips"]) == (2, 1, 1)
    with pytest.raises(InvariantViolation, match="scheduler 2 != updates 1"):
        captured(run)


def _in_place(run: Run) -> None:
    with torch.no_grad():
        run.net[0].weight.add_(1)


def _a_draw(run: Run) -> None:
    del run
    torch.rand(1)


def _a_rate(run: Run) -> None:
    run.optimizer.param_groups[0]["weight_decay"] = 0.5


def _a_batch(run: Run) -> None:
    run.samples.take()


@pytest.mark.parametrize("point", ["marks-read", "item-copied", "copied"])
@pytest.mark.parametrize("change", [Run.attempt, _in_place, _a_draw, _a_rate, _a_batch])
def test_a_change_while_the_items_are_copied_refuses_the_capture(change: Any, point: str) -> None:
    """Whichever object it is, and wherever it falls."""
    run = Run()
    run.attempt()
    with pytest.raises(SourceChanged):
        captured(run, at=lambda name: change(run) if name == point else None)


def test_a_step_that_has_begun_is_odd_until_it_has_ended() -> None:
    """What an error left half changed is no state until a restore has replaced it."""
    run = Run()
    run.attempt()
    taken = captured(run)
    run.optimizer.register_step_pre_hook(_fail)
    run.backward()
    with pytest.raises(RuntimeError, match="half way"):
        run.scaler.step(run.optimizer)
    with pytest.raises(SourceChanged, match="optimizer is being mutated"):
        captured(run)
    run.state.adopt(arrays=arrays(taken), versions=taken.versions, values=taken.values)
    captured(run)


def _fail(*_: object) -> None:
    raise RuntimeError("half way")


def test_a_forward_pass_that_failed_counts_nowhere() -> None:
    """The ranks' counts would differ for ever."""
    run = Run()
    with pytest.raises(RuntimeError):
        run.net(torch.zeros(4, 5))
    assert run.state.versions.timeline()["forwards"] == 0
    captured(run)


def test_a_save_from_another_thread_than_trains_needs_digests() -> None:
    """No mark says there that a change has begun."""
    for digests in (False, True):
        run = Run(digests=digests)
        training = threading.Thread(target=run.attempt)
        training.start()
        training.join()
        if digests:
            assert captured(run).versions["updates"] == 1
            with pytest.raises(SourceChanged, match=r"item model\.0\.weight"):  # past torch's own counter
                captured(run, at=lambda point, run=run: _behind_its_back(run) if point == "copied" else None)
        else:
            with pytest.raises(SourceChanged, match="another thread"):
                captured(run)


def _behind_its_back(run: Run) -> None:
    run.net[0].weight.detach().numpy()[0, 0] += 1


def test_a_contract_is_the_same_before_the_first_step_and_after() -> None:
    """A fresh process has to have the one that the checkpoint was made under."""
    run = Run()
    before: Contract = run.contract
    run.attempt()
    assert contract_of(run.state, batch=4).digest == before.digest
    assert {"moment_m", "moment_v", "optimizer_step"} <= set(before.roles)
    assert "moment_m" not in Run(momentum=False).contract.roles


class Odd(nn.Module):
    """A module with something in its state_dict that is no tensor."""

    def get_extra_state(self) -> Mapping[str, int]:
        """What no item can hold."""
        return {"calls": 1}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        """Never called."""


def test_what_has_no_place_is_refused_by_its_name() -> None:
    """Nothing that the next update needs is left out silently."""
    with pytest.raises(ManifestInvalid, match="_extra_state"):
        state_of(Odd())
    net = nn.Linear(40, 40)
    with pytest.raises(ManifestInvalid, match="does not name"):
        state_of(net, torch.optim.SGD(nn.Linear(2, 2).parameters()))
    searched = torch.optim.LBFGS(net.parameters(), max_iter=4)
    state = state_of(net, searched)
    searched.step(lambda: _backward(net))
    with pytest.raises(ManifestInvalid, match=r"config/optimizer\.kept\.weight\..* has no place"):
        _ = state.values
    with pytest.raises(ManifestInvalid, match="optimizer_roles="):
        contract_of(state)


def _backward(net: nn.Module) -> torch.Tensor:
    net.zero_grad()
    loss: torch.Tensor = net(torch.ones(1, 40)).square().sum()
    loss.backward()
    return loss


def test_an_optimizer_without_moments_is_a_whole_state() -> None:
    """Plain SGD keeps nothing, and the contract asks for nothing."""
    one, other = Run(momentum=False), Run(momentum=False)
    one.attempt()
    taken = captured(one)
    other.state.adopt(arrays=arrays(taken), versions=taken.versions, values=taken.values)
    assert isinstance(other.state, TorchState)
    assert other.told() == one.told()
