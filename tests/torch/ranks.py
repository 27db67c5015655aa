"""Ranks as real processes, and what they tell."""

import json
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
TASK: dict[str, Any] = {
    "seed": 1, "norm": "batch", "model": "net", "scaler": True, "fused": False, "digests": False, "overflow_at": None,
    "over_store": False, "layout_policy": None, "until": 10, "save_at": [], "die_at": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """How one ended and what it told."""

    code: int
    told: list[dict[str, Any]]
    errors: str

    @property
    def fields(self) -> dict[int, dict[str, str]]:
        """Every field after each attempt, and as restored."""
        found = {line["attempt"]: line["fields"] for line in self.told if "attempt" in line}
        return found | {int(line["fields"]["attempts"]): line["fields"] for line in self.told if "resumed" in line}

    @property
    def resumed(self) -> int | None:
        """The update at which it took up, if it did."""
        return next((line["resumed"] for line in self.told if "resumed" in line), None)


class Ranks:
    """Runs of so many ranks, one after the other; `with` starts and ends the process that they come from."""

    def __enter__(self) -> Self:
        self._nursery = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.torch.nursery"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.kill()
        self._nursery.communicate()

    def __call__(self, root: Path, world: int, **task: Any) -> list[Rank]:
        """Run them to their end."""
        run = root.parent / f"run-{secrets.token_hex(8)}"
        run.mkdir()
        own = {"root": str(root), "rendezvous": str(run / "rendezvous"), "world": world}
        files = [(run / f"told-{rank}", run / f"errors-{rank}") for rank in range(world)]
        asked = [[{**TASK, **task, **own, "rank": rank}, *map(str, pair)] for rank, pair in enumerate(files)]
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(asked) + "\n")
        self._nursery.stdin.flush()
        codes = json.loads(self._nursery.stdout.readline())
        return [
            Rank(
                code=code, told=[json.loads(line) for line in told.read_text().splitlines()], errors=errors.read_text()
            )
            for code, (told, errors) in zip(codes, files, strict=True)
        ]
