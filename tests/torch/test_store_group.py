"""Words in a store of torch.distributed: said once, seen whole, looked at without waiting."""

import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from services.checkpoints.errors import ContributorMissing, DuplicateContributor
from services.checkpoints.group import MEET
from services.checkpoints.store_group import StoreGroup

LAUNCH = "ab" * 16


@pytest.fixture(params=["tcp", "file", "hash", "prefix"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> list[dist.Store]:
    """Two connections to one store, where the kind has connections."""
    if request.param == "tcp":
        first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return [first, dist.TCPStore("127.0.0.1", first.port, is_master=False)]
    if request.param == "file":
        return [dist.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    shared = dist.HashStore()
    return [shared if request.param == "hash" else dist.PrefixStore("job", shared)] * 2


def test_a_word_is_said_once_and_seen_by_all(stores: list[dist.Store]) -> None:
    """Also an equal one, of a second process under the same number."""
    one, other = (StoreGroup(store, launch=LAUNCH, rank=1, world=2) for store in stores)
    assert other.look(MEET, "joined.1") is None
    one.publish(MEET, "joined.1", {"text": "-", "half": 0.1})
    assert other.look(MEET, "joined.1") == {"text": "-", "half": 0.1}
    with pytest.raises(DuplicateContributor):
        other.publish(MEET, "joined.1", {"text": "-", "half": 0.1})
    one.publish(MEET, "empty.1", {})
    assert other.look(MEET, "empty.1") == {}
    one.forget(MEET, "joined.1")
    assert other.look(MEET, "joined.1") is None


def test_of_many_speakers_one_is_heard(stores: list[dist.Store]) -> None:
    """Whoever came first; the others know that they were not."""
    refused, gate = [], threading.Barrier(8)

    def speak(at: int) -> None:
        group = StoreGroup(stores[at % 2], launch=LAUNCH, rank=0, world=2)
        gate.wait()
        try:
            group.publish(MEET, "open", {})
        except DuplicateContributor:
            refused.append(at)

    threads = [threading.Thread(target=speak, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7


def test_another_launch_hears_nothing_of_a_dead_one(stores: list[dist.Store]) -> None:
    """A launcher that starts its ranks again keeps its store."""
    StoreGroup(stores[0], launch=LAUNCH, rank=0, world=2).publish(MEET, "open", {})
    assert StoreGroup(stores[1], launch="cd" * 16, rank=1, world=2).look(MEET, "open") is None


def test_who_does_not_speak_is_named_at_the_deadline(stores: list[dist.Store]) -> None:
    """The store itself never waits."""
    with pytest.raises(ContributorMissing, match="Contributor 1 did not say 'joined'"):
        StoreGroup(stores[0], launch=LAUNCH, rank=0, world=2).gather(MEET, "joined", {}, seconds=0.05)
