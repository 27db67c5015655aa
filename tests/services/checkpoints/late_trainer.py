"""A trainer with a writer of its own that is wrong: a thread that reads the live arrays when it gets there.

    python -m tests.services.checkpoints.late_trainer ROOT RANK WORLD LAUNCH [honest | impatient]

Its source of versions is the classic mistake: counters that were noted when the save was asked for, and marks that no
mutation moves. Nothing that it says of itself is inconsistent, and it trains on as soon as the thread has looked. With
`honest` the same loop saves as it should, with `impatient` it does and gives the others three seconds to capture.
"""

import sys
import threading
from collections.abc import Mapping

import numpy as np

from services.checkpoints.contract import Contract
from services.checkpoints.saving import Deadlines
from services.checkpoints.session import Session
from services.checkpoints.state import Item, State, Versioned

UPDATES, EVERY = 5, 3
CONTRACT = Contract.load(
    {
        "format": "counterfoil-contract-1",
        "name": "late",
        "boundary": "after an update",
        "versions": {"updates": "shared"},
        "constants": {},
        "roles": {"param": {"required": True, "placement": "per_contributor", "versions": ["updates"]}},
        "relations": [],
        "profiles": {"resume": ["param"], "weights": ["param"]},
        "reproducibility": "exact",
    }
)


class Noted:
    """Versions as they were when somebody looked last."""

    def __init__(self) -> None:
        self.updates = 0
        self.looked = threading.Event()

    def read(self) -> Mapping[str, int]:
        """A mark that never moves."""
        self.looked.set()
        return {"model": 0}

    def timeline(self) -> Mapping[str, int]:
        """What was noted."""
        return {"updates": self.updates}

    def adopt(self, timeline: Mapping[str, int]) -> None:
        """Of a restored cut."""
        self.updates = timeline["updates"]


def main(root: str, rank: str, world: str, launch: str, how: str = "late") -> None:
    """Train five updates and save the third."""
    first, second = np.zeros(64), np.zeros(64)
    noted, marked = Noted(), Versioned({"updates": 0})
    items = {name: Item(role="param", array=array, source="model") for name, array in (("a", first), ("b", second))}
    state = State(items=items, versions=noted if how == "late" else marked)
    patience = Deadlines(capture_seconds=3.0 if how == "impatient" else 60.0)
    writer: threading.Thread | None = None
    with Session.open(
        root, run="late", rank=int(rank), world=int(world), launch=launch, contract=CONTRACT, deadlines=patience
    ) as session:
        session.resume(state)
        for update in range(1, UPDATES + 1):
            with marked.mutation():
                first += update
                second -= update
                marked.advance(updates=1)
            session.agree_stop(update)
            if update % EVERY:
                continue
            if how != "late":
                session.save_async(state)
                continue
            noted.updates = update
            writer = threading.Thread(target=session.save, args=(state,))
            writer.start()
            noted.looked.wait(60)
        if writer is not None:
            writer.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
