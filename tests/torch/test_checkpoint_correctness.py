"""Ours in the comparison with torch.distributed.checkpoint: what docs/checkpoints.md says of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {
    "C01": r"saved at 1, a = 1, b = 1",
    "C02": r"a = 1, b = 1",
    "C04": r"CutVersionMismatch: rank 2: attempts 100 != 101",
    "C22": r"a = 2, b = 2; the newest has contributors 0, 1",
    "C31": r"the next save says CommitFailed: contributor 0 could not write; resume: a = 1, b = 1",
    "D03": r"SourceChanged: contributor 0: source optimizer moved from 200 to 202 while items were copied",
    "D05": r"a = 100, b = 100, checkpoint \d named as damaged",
}


@pytest.mark.timeout(300)
def test_every_row_of_the_comparison_ends_as_the_page_says() -> None:
    """C01, C02, C04, C22, C31, D03, D05, each in real ranks."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.checkpoint_correctness", "--ours"],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=True,
    )  # fmt: skip
    rows = {row["id"]: row["ours"] for row in json.loads(ran.stdout)["rows"]}
    assert rows.keys() == OURS.keys()
    page = (ROOT / "docs/checkpoints.md").read_text()
    for each, said in rows.items():
        assert re.fullmatch(OURS[each], said)
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {each} |")]
        assert re.search(rf"\| {OURS[each]} \|$", line)
