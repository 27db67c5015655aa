"""Ranks as real processes, and what they tell."""

import json
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 100
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


def ranks(root: Path, world: int, **task: Any) -> list[Rank]:
    """Run so many ranks to their end."""
    rendezvous = root.parent / f"rendezvous-{secrets.token_hex(8)}"
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.torch.trainer",
             json.dumps({**TASK, **task, "root": str(root), "rendezvous": str(rendezvous), "rank": rank,
                         "world": world})],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    ended = []
    try:
        for process in started:
            out, errors = process.communicate(timeout=LIMIT_SECONDS)
            ended.append(Rank(code=process.returncode, told=[json.loads(line) for line in out.splitlines()], errors=errors))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return ended
