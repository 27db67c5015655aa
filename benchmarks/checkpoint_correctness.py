"""What torch.distributed.checkpoint does where a cut can go wrong, and what ours does: side by side, in real ranks.

    python -m benchmarks.checkpoint_correctness [--json] [--ours]

It runs in the environment of `make test-torch`. Each row is an incident that somebody had; every cell is what was read
back in this run, and no cell is written beforehand.
"""

import json
import multiprocessing
import os
import re
import resource
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # an optimizer's first step loads it: once here, and not in every rank
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from services.checkpoints.delays import Then
from services.checkpoints.saving import Deadlines
from services.checkpoints.session import Session
from services.checkpoints.torch import TorchState, contract_of, state_of

LIMIT_SECONDS: Final = 60
DEADLINES: Final = Deadlines(entry_seconds=20.0, capture_seconds=20.0, persist_seconds=20.0, margin_seconds=2.0)
FILE_LIMIT_BYTES: Final = 1 << 20


class Two(nn.Module):
    """Two parameters whose every element is the number of updates.

    Args:
        rows: of each.
        sharded: by rows, over all ranks.
    """

    def __init__(self, rows: int, *, sharded: bool = False) -> None:
        super().__init__()
        whole = torch.zeros(rows, 8)
        if sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            self.a = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
            self.b = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
        else:
            self.a, self.b = nn.Parameter(whole), nn.Parameter(whole.clone())


class Run:
    """A run of `Two`: each update adds 1."""

    def __init__(self, rows: int = 6, *, sharded: bool = False) -> None:
        self.model = Two(rows, sharded=sharded)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.state: TorchState = state_of(self.model, self.optimizer, rng=())

    def until(self, updates: int) -> None:
        """Updates until it stands there."""
        while self.state.updates < updates:
            for parameter in self.model.parameters():
                parameter.grad = -torch.ones_like(parameter)
            self.optimizer.step()

    def update(self) -> None:
        """One more."""
        self.until(self.state.updates + 1)

    def stored(self) -> dict[str, torch.Tensor]:
        """What torch.distributed.checkpoint is given."""
        return {"a": self.model.a, "b": self.model.b}

    def seen(self) -> str:
        """The updates that its bytes are of."""
        told = []
        for name, tensor in self.stored().items():
            whole = tensor.detach()
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            found = sorted({f"{value:g}" for value in whole.flatten().tolist()})
            told.append(f"{name} = {' and '.join(found[:3])}")
        return ", ".join(told)

    def session(self, folder: str, launch: str, *, at: Mapping[str, Callable[[], None]] | None = None) -> Session:
        """A session of ours."""
        return Session.open(
            Path(folder) / "ours", run="r1", rank=dist.get_rank(), world=dist.get_world_size(), launch=launch,
            contract=contract_of(self.state), deadlines=DEADLINES, at=Then(actions=at or {}),
        )  # fmt: skip


def loaded(folder: str, rows: int = 6, *, sharded: bool = False) -> str:
    """What torch.distributed.checkpoint gives back."""
    fresh = Run(rows, sharded=sharded)
    dcp.load(fresh.stored(), checkpoint_id=folder)
    return fresh.seen()


def resumed(folder: str, launch: str, rows: int = 6, *, sharded: bool = False) -> str:
    """What ours gives back."""
    fresh = Run(rows, sharded=sharded)
    with fresh.session(folder, launch) as session:
        found = session.resume(fresh.state)
        skipped = [each.sequence for each in session.report.skipped] if session.report else []
    return (f"{fresh.seen()}" if found else "nothing") + (
        f", checkpoint {skipped[0]} named as damaged" if skipped else ""
    )


def named(act: Callable[[], Any]) -> str | None:
    """The name of the error that it ends with; None where it ends well."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - torch's CheckpointException is no Exception
        clause = re.split(r"[;(]|\. | to /", str(error).partition("\n")[0])[0].strip()
        name = type(error).__name__
        return name if clause.startswith(name) else f"{name}: {clause}"
    return None


class Between(DefaultSavePlanner):
    """Does something after the first item was read and before the second one is."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__()
        self._action = action
        self._reads = 0

    def resolve_data(self, write_item: Any) -> Any:
        """An item's bytes: what is read first is kept apart, as a writer keeps what it has written."""
        data = super().resolve_data(write_item)
        self._reads += 1
        if self._reads == 1:
            data = data.clone() if isinstance(data, torch.Tensor) else data
            self._action()
        return data


# Each gives what was found, at rank 0. `folder` is empty and shared; `launches` are fresh.


def c01_theirs(folder: str, launches: Sequence[str]) -> str:
    """Asynchronously saved, then updated at once."""
    del launches
    run = Run()
    run.until(1)
    save = dcp.async_save(run.stored(), checkpoint_id=folder)
    run.update()
    save.result()
    return f"saved at 1, {loaded(folder)}"


def c01_ours(folder: str, launches: Sequence[str]) -> str:
    """The same."""
    run = Run()
    run.until(1)
    with run.session(folder, launches[0]) as session:
        save = session.save_async(run.state)
        run.update()
        save.wait()
    return f"saved at 1, {resumed(folder, launches[1])}"


def c02_theirs(folder: str, launches: Sequence[str]) -> str:
    """The writer is late between two tensors, the trainer goes on: by async_save, and in a thread of one's own."""
    del launches
    told = []
    for how in ("async_save", "save in a thread"):
        run, wrote, went_on = Run(), threading.Event(), threading.Event()
        run.until(1)

        def late(wrote: threading.Event = wrote, went_on: threading.Event = went_on) -> None:
            wrote.set()
            went_on.wait(LIMIT_SECONDS)

        place = f"{folder}/{how[:5]}"
        if how == "async_save":
            ended = dcp.async_save(run.stored(), checkpoint_id=place, planner=Between(late)).result
        else:
            given = {"checkpoint_id": place, "planner": Between(late)}
            writer = threading.Thread(target=dcp.save, args=(run.stored(),), kwargs=given)
            writer.start()
            ended = writer.join
        wrote.wait(LIMIT_SECONDS)
        run.update()
        went_on.set()
        ended()
        told.append(f"{how}: {loaded(place)}")
    return "; ".join(told)


def c02_ours(folder: str, launches: Sequence[str]) -> str:
    """The writer is late after the release, the trainer goes on."""
    run, went_on = Run(), threading.Event()
    run.until(1)
    with run.session(folder, launches[0], at={"staged": lambda: _until(went_on)}) as session:
        save = session.save_async(run.state)
        run.update()
        went_on.set()
        save.wait()
    return resumed(folder, launches[1])


def _until(event: threading.Event) -> None:
    event.wait(LIMIT_SECONDS)


def c04_theirs(folder: str, launches: Sequence[str]) -> str:
    """Three ranks with rows of a whole; one of them is an update behind."""
    del launches
    run = Run(sharded=True)
    run.until(100 if dist.get_rank() == 2 else 101)  # noqa: PLR2004 - the third of three
    error = named(lambda: dcp.save(run.stored(), checkpoint_id=folder))
    return error or f"saved, {loaded(folder, sharded=True)}"


def c04_ours(folder: str, launches: Sequence[str]) -> str:
    """The same."""
    run = Run(sharded=True)
    run.until(100 if dist.get_rank() == 2 else 101)  # noqa: PLR2004 - the third of three
    with run.session(folder, launches[0]) as session:
        return str(named(lambda: session.save(run.state)))


def c22_theirs(folder: str, launches: Sequence[str]) -> str:
    """Four ranks save, then two save into the same folder."""
    del launches
    run = Run(rows=8, sharded=True)
    run.until(1)
    dcp.save(run.stored(), checkpoint_id=folder)
    two = dist.new_group([0, 1])
    if dist.get_rank() < 2:  # noqa: PLR2004 - two go on
        again = Run(rows=8)
        again.until(2)
        dcp.save(again.stored(), checkpoint_id=folder, process_group=two)
    dist.barrier()
    files = sorted(each.name for each in Path(folder).glob("*.distcp"))
    return f"{loaded(folder, rows=8)}; files of ranks {', '.join(name[2] for name in files)} lie in one folder"


def c22_ours(folder: str, launches: Sequence[str]) -> str:
    """Four ranks save, then two save the same run again."""
    run = Run(rows=8)
    run.until(1)
    with run.session(folder, launches[0]) as session:
        session.save(run.state)
    two, told = dist.new_group([0, 1]), ""
    if dist.get_rank() < 2:  # noqa: PLR2004 - two go on
        again = Run(rows=8)
        with Session.open(
            Path(folder) / "ours", run="r1", rank=dist.get_rank(two), world=2, launch=launches[1],
            contract=contract_of(again.state), deadlines=DEADLINES,
        ) as session:  # fmt: skip
            session.resume(again.state)
            again.until(2)
            session.save(again.state)
            found, _ = session.latest()
            assert found is not None  # noqa: S101 - it was saved just now
            told = f"{again.seen()}; the newest has contributors {', '.join(found.manifest.contributors)}"
    dist.barrier()
    return told


def c31_theirs(folder: str, launches: Sequence[str]) -> str:
    """A file cannot be written to its end in the background; then the next save begins."""
    del launches
    run = Run(rows=200_000)
    run.until(1)
    dcp.save(run.stored(), checkpoint_id=folder)
    run.update()
    with _short_files():
        save = dcp.async_save(run.stored(), checkpoint_id=folder)
        with suppress(BaseException):
            save.result()
    following = named(lambda: dcp.async_save(run.stored(), checkpoint_id=f"{folder}/next").result())
    seen = named(lambda: loaded(folder, rows=200_000))
    return f"the next save says {following or 'nothing'}; what that folder had before: {seen or 'loads'}"


def c31_ours(folder: str, launches: Sequence[str]) -> str:
    """The same."""
    run = Run(rows=200_000)
    run.until(1)
    with run.session(folder, launches[0]) as session:
        session.save(run.state)
        run.update()
        with _short_files():
            session.save_async(run.state)._over.wait()  # noqa: SLF001 - nobody asks how it ended
        following = named(lambda: session.save_async(run.state))
    return f"the next save says {following}; resume: {resumed(folder, launches[1], rows=200_000)}"


class _short_files:  # noqa: N801 - used as a statement
    """No file of this process grows beyond a mebibyte meanwhile: a disk that is full."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def d03_theirs(folder: str, launches: Sequence[str]) -> str:
    """An update falls between the readings of two tensors, each of which is read whole."""
    del launches
    run = Run()
    run.until(100)
    error = named(lambda: dcp.save(run.stored(), checkpoint_id=folder, planner=Between(run.update)))
    return error or f"saved, {loaded(folder)}"


def d03_ours(folder: str, launches: Sequence[str]) -> str:
    """The same."""
    run, once = Run(), [True]
    run.until(100)

    def between() -> None:
        if once:
            once.pop()
            run.update()

    with run.session(folder, launches[0], at={"item-copied": between}) as session:
        return str(named(lambda: session.save(run.state)))


def d05_theirs(folder: str, launches: Sequence[str]) -> str:
    """Checkpoints of 100 and 101; a byte of rank 1's rows of 101 is flipped; all load 101."""
    del launches
    run = Run(sharded=True)
    for updates in (100, 101):
        run.until(updates)
        dcp.save(run.stored(), checkpoint_id=f"{folder}/{updates}")
    if dist.get_rank() == 1:
        _flip(next(Path(folder, "101").glob("__1_*.distcp")))
    dist.barrier()
    told: list[str | None] = [None] * dist.get_world_size()
    fresh = Run(sharded=True)
    error = named(lambda: dcp.load(fresh.stored(), checkpoint_id=f"{folder}/101"))
    dist.all_gather_object(told, error)
    seen = fresh.seen()
    return f"rank {', '.join(str(at) for at, each in enumerate(told) if each) or 'none'} of 3 got an error; {seen}"


def d05_ours(folder: str, launches: Sequence[str]) -> str:
    """The same; all resume."""
    run = Run(sharded=True)
    with run.session(folder, launches[0]) as session:
        for updates in (100, 101):
            run.until(updates)
            session.save(run.state)
    if dist.get_rank() == 1:
        _flip(max(Path(folder).rglob("data/*/1.bin"), key=lambda each: each.stat().st_mtime_ns))
    dist.barrier()
    return resumed(folder, launches[1], sharded=True)


def _flip(path: Path) -> None:
    """One bit of a stored number: the first byte pair that 101 is written with."""
    data = bytearray(path.read_bytes())
    at = data.index(torch.tensor([101.0]).numpy().tobytes())
    data[at + 2] ^= 1
    path.write_bytes(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One incident, and how many ranks it takes."""

    id: str
    incident: str
    world: int


ROWS: Final = (
    Row(id="C01", incident="an update right after the asynchronous save", world=1),
    Row(id="C02", incident="the writer is late between two tensors, and training goes on", world=1),
    Row(id="C04", incident="one of three ranks saves update 100, the others 101", world=3),
    Row(id="C22", incident="four ranks save, then two save to the same place", world=4),
    Row(id="C31", incident="a write fails in the background and nobody asks", world=1),
    Row(id="D03", incident="an update between the readings of two tensors", world=1),
    Row(id="D05", incident="one rank's part of 101 is damaged, 100 is whole", world=3),
)


def measured(row: Row, of: Sequence[str] = ("theirs", "ours")) -> dict[str, str]:
    """What both do, or one."""
    found = {"id": row.id, "incident": row.incident}
    for who in of:
        with tempfile.TemporaryDirectory(prefix="counterfoil-correctness-") as folder:
            found[who] = _in_ranks(row.world, f"{row.id.lower()}_{who}", folder)
    return found


def _in_ranks(world: int, name: str, folder: str) -> str:
    """Call a function in so many forked ranks; what rank 0 found."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    launches = [secrets.token_hex(16) for _ in range(2)]
    ranks = [
        context.Process(target=_rank, args=(rank, world, folder, name, launches, answers), daemon=True)
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    ranks[0].join(LIMIT_SECONDS)
    found = f"no answer within {LIMIT_SECONDS} s" if answers.empty() else str(answers.get())
    for rank in ranks:
        rank.kill()
        rank.join()
    return found


def _rank(  # noqa: PLR0917 - what a process is started with
    rank: int, world: int, folder: str, name: str, launches: Sequence[str], answers: Any
) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its warnings are not the finding
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    place = Path(folder) / "checkpoints"
    place.mkdir(exist_ok=True)
    found = named(lambda: _say(answers if rank == 0 else None, globals()[name](str(place), launches)))
    if rank == 0 and found is not None:
        answers.put(found)
    os._exit(0)


def _say(answers: Any, what: str) -> None:
    if answers is not None:
        answers.put(what)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """As docs/checkpoints.md shows it."""
    lines = ["| | what happens | torch.distributed.checkpoint | Counterfoil |", "|---|---|---|---|"]
    lines += [f"| {row['id']} | {row['incident']} | {row['theirs']} | {row['ours']} |" for row in rows]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measure every row and print them."""
    ours = "--ours" in arguments
    rows = [measured(row, ("ours",) if ours else ("theirs", "ours")) for row in ROWS]
    as_json = ours or "--json" in arguments
    told = json.dumps({"torch": str(torch.__version__), "rows": rows}, indent=2) if as_json else table(rows)
    sys.stdout.write(f"{told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
