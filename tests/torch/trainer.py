"""A small real training run on gloo ranks, each a process: it tells the digest of every field after each update."""

import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from services.checkpoints.errors import CheckpointError
from services.checkpoints.records import canonical, digest_of
from services.checkpoints.saving import Deadlines
from services.checkpoints.session import Session
from services.checkpoints.store_group import StoreGroup
from services.checkpoints.torch import Samples, contract_of, shared_launch, state_of

BATCH = 12
DEADLINES = Deadlines(entry_seconds=60.0, capture_seconds=60.0, persist_seconds=60.0, margin_seconds=5.0)


class Net(nn.Module):
    """A convolution in channels-last order, a normalization, dropout, tied weights and a layer in bfloat16."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(6) if norm == "batch" else nn.GroupNorm(2, 6)
        self.drop = nn.Dropout(0.25)
        self.narrow = nn.Linear(6, 6).to(torch.bfloat16)
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.out = nn.Linear(6, 1)
        self.register_buffer("shown", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One number for each picture."""
        if self.training:
            self.shown += 1
        y = self.drop(self.norm(self.conv(x)).relu()).mean((2, 3))
        y = self.narrow(y.bfloat16()).float().tanh()
        return self.out(self.again(self.first(y).tanh()))


def pictures(numbers: torch.Tensor) -> torch.Tensor:
    """The samples of these numbers: functions of them alone."""
    grid = torch.arange(32, dtype=torch.float32).reshape(2, 4, 4)
    return torch.sin(numbers.float()[:, None, None, None] * 0.37 + grid)


class Run:
    """One rank's objects."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        rank, world = task["rank"], task["world"]
        # Another seed at every start: what is not restored shows.
        torch.manual_seed(task["seed"] + 100 * rank)
        random.seed(task["seed"] + rank)
        np.random.seed(task["seed"] + rank)  # noqa: NPY002 - the global stream is what is kept
        self.net = Net(task["norm"]) if task["model"] == "net" else nn.Sequential(nn.Linear(32, 7), nn.Linear(7, 1))
        if task["model"] == "sharded":
            for parameter in self.net.parameters():
                dist.broadcast(parameter.data, 0)
            for layer in self.net:
                fully_shard(layer)
            self.called = fully_shard(self.net)
        else:
            # DDP fills its buckets in another order after its first update, and three ranks' sums round by that order.
            # A restart has a first update again; where unused parameters are looked for, the order stays.
            self.called = DistributedDataParallel(self.net, find_unused_parameters=world > 2)
        parameters = [
            {"params": list(self.net.parameters())[:2], "lr": 0.02},
            {"params": list(self.net.parameters())[2:]},
        ]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.01, amsgrad=True, fused=task["fused"])
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(
            self.optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=3),
                torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [4, 6, 6]),
            ],
            [3],
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4, enabled=task["scaler"])
        self.samples = Samples(31, BATCH, seed=5, rank=rank, world=world)
        self.history: dict[str, Any] = {"history": []}
        self.state = state_of(
            self.called, self.optimizer, self.scheduler, self.scaler, self.samples,
            values=self.history, rng=("torch", "python", "numpy"), digests=task["digests"],
        )  # fmt: skip
        self.overflow_at = task["overflow_at"]

    def attempt(self) -> None:
        """One attempt; where it is told so, one whose gradients overflow."""
        x = pictures(self.samples.take())
        if not isinstance(self.net, Net):
            x = x.flatten(1)
        noise = random.random() + np.random.random()  # noqa: S311, NPY002 - streams that a restore has to put back
        loss = ((self.called(x) - noise * x.flatten(1).sum(1, keepdim=True).tanh()) ** 2).mean()
        if self.state.versions["attempts"] == self.overflow_at:
            loss = loss * float("inf")
        self.scaler.scale(loss).backward()
        before = self.state.updates
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.state.updates > before:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.history["history"].append(loss.item() if self.state.updates > before else None)
        if dist.get_world_size() > 1:  # every rank keeps the same: rank 0's
            self.history["history"][-1] = _of_first(self.history["history"][-1])

    def fields(self) -> dict[str, str]:
        """The digest of everything that the next update needs."""
        found = {name: digest_of(item.array.tobytes()) for name, item in self.state.items.items()}
        found |= {name: digest_of(canonical(value)) for name, value in self.state.values.items()}
        for parameter, kept in self.optimizer.state.items():  # of what is sharded, the whole too
            for key, content in {"": parameter, **kept}.items():
                if isinstance(content, DTensor):
                    name = next(name for name, each in self.net.named_parameters() if each is parameter)
                    found[f"whole {name} {key}"] = digest_of(content.full_tensor().detach().numpy().tobytes())
        return found | {name: str(count) for name, count in self.state.versions.timeline().items()}


def _of_first(value: float | None) -> float | None:
    told = torch.tensor([float("nan") if value is None else value], dtype=torch.float64)
    dist.broadcast(told, 0)
    return None if told.isnan() else told.item()


def tell(**what: Any) -> None:
    """One line for the test."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def train(task: Mapping[str, Any]) -> None:
    """Train, save, and die or end as told."""
    torch.set_num_threads(1)
    rank, world = task["rank"], task["world"]
    store = dist.FileStore(task["rendezvous"], world)
    dist.init_process_group("gloo", store=dist.PrefixStore("ranks", store), rank=rank, world_size=world)
    live = Run(task)
    launch = shared_launch()
    placements = {"buffer": "per_contributor"} if task["norm"] == "batch" and world > 1 else {}
    contract = contract_of(live.state, batch=BATCH, placements=placements)
    meeting = (lambda _: StoreGroup(store, launch=launch, rank=rank, world=world)) if task["over_store"] else None
    with Session.open(
        task["root"], run="r1", rank=rank, world=world, launch=launch, contract=contract, group=meeting,
        deadlines=DEADLINES,
    ) as session:  # fmt: skip
        if session.resume(live.state, layout_policy=task["layout_policy"]):
            tell(resumed=live.state.updates, fields=live.fields())
        while live.state.versions["attempts"] < task["until"]:
            live.attempt()
            tell(attempt=live.state.versions["attempts"], fields=live.fields())
            session.agree_stop(live.state.updates)
            if live.state.versions["attempts"] in task["save_at"]:
                save = session.save_async(live.state)
                live.attempt()  # goes on while the copy is written
                tell(attempt=live.state.versions["attempts"], fields=live.fields())
                tell(saved=save.wait().versions)
            if live.state.versions["attempts"] == task["die_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def run(task: Mapping[str, Any]) -> int:
    """Train as told; the process's exit code."""
    try:
        train(task)
    except CheckpointError as error:
        tell(error=type(error).__name__, message=str(error))
        return 3
    return 0
