"""A classifier of two spirals on as many ranks as torchrun starts. Kill it with -9 and start it again: same curve.

torchrun --standalone --nproc-per-node 2 examples/train_torch.py /tmp/spirals
"""

import hashlib
import math
import os
import sys

import torch
import torch.distributed as dist
from counterfoil_checkpoints.session import Session
from counterfoil_checkpoints.torch import Samples, contract_of, shared_launch, state_of
from torch import nn

root, total = sys.argv[1], int((sys.argv[2:] or [2000])[0])
SIZE, BATCH = 1000, 32
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

turn = torch.arange(SIZE) / SIZE * 2 * math.pi  # two spirals, a point of each in turn
side = torch.arange(SIZE) % 2
points = torch.stack([turn * torch.cos(turn + side * math.pi), turn * torch.sin(turn + side * math.pi)], 1) / 6

torch.manual_seed(7 + rank)  # each rank's dropout is its own; DDP takes the first weights from rank 0
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=world > 2)  # see docs/checkpoints.md
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
samples = Samples(SIZE, BATCH, seed=1, rank=rank, world=world)
curve = {"history": []}

state = state_of(model, optimizer, scheduler, loader=samples, values=curve)
contract = contract_of(state, name="spirals", batch=BATCH)
with Session.open(root, run="spirals", rank=rank, world=world, launch=shared_launch(), contract=contract) as session:
    told = "resumed" if session.resume(state) else "new"
    print(f"process {os.getpid()}, rank {rank}: update {state.updates}, {told}", flush=True)
    while state.updates < total:
        chosen = samples.take()
        loss = nn.functional.cross_entropy(model(points[chosen]), side[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        dist.all_reduce(mean := loss.detach() / world)
        curve["history"].append(mean.item())
        stop = session.agree_stop(state.updates)
        if stop or state.updates % 100 == 0:
            save = session.save_async(state)  # training goes on while it is written
            if rank == 0:
                print(f"update {state.updates}, loss {curve['history'][-1]:.6f}", flush=True)
        if stop:
            break
if rank == 0:
    told = hashlib.sha256(repr(curve["history"]).encode()).hexdigest()[:16]
    print(f"{state.updates} updates, loss {curve['history'][-1]:.6f}, curve {told}")
dist.destroy_process_group()
