"""The reference learner's contract: what one of its cuts is."""

from .contract import FORMAT, Contract
from .learner import LearnerConfig

RUN = "reference"


def contract_of(config: LearnerConfig) -> Contract:
    """The contract of a run of the reference learner: after an attempt, every quantity at one place of the timeline."""
    sharded = {"placement": "sharded", "versions": ["updates", "attempts"]}
    replicated = {"placement": "replicated", "versions": ["updates", "attempts"]}
    return Contract.load(
        {
            "format": FORMAT,
            "name": "reference-learner",
            "boundary": "after an attempt, gradients cleared, nothing in flight",
            "versions": {
                "attempts": "shared",
                "updates": "shared",
                "skips": "shared",
                "microbatch": "shared",
                "forwards": "shared",
                "scheduler": "shared",
                "cursor": "shared",
                "fetched": "shared",
                "draws": "shared",
                "in_flight": "shared",
            },
            "constants": {"batch": config.batch, "start": 0},
            "roles": {
                "param": {"required": True, **sharded},
                "moment_m": {"required": True, **sharded},
                "moment_v": {"required": True, **sharded},
                "buffer": {"required": True, "placement": "sharded", "versions": ["forwards"]},
                "optimizer_step": {"required": True, **replicated},
                "scaler": {"required": True, **replicated},
                "history": {"required": True, **replicated},
                "rng": {"required": True, "placement": "replicated", "versions": ["draws"]},
                "scheduler": {"required": True, **replicated, "agrees": {"updates": "scheduler"}},
                "cursor": {"required": True, **replicated, "agrees": {"samples": "cursor"}},
            },
            "relations": [
                "updates + skips == attempts",
                "scheduler == updates",
                "cursor == start + attempts * batch",
                "draws == attempts * batch",
                "forwards == attempts * batch",
                "fetched == cursor",
                "microbatch == 0",
                "in_flight == 0",
            ],
            "profiles": {
                "resume": [
                    "param", "moment_m", "moment_v", "buffer", "optimizer_step", "scaler", "history", "rng",
                    "scheduler", "cursor",
                ],
                "weights": ["param"],
            },
            "reproducibility": "exact",
        }
    )  # fmt: skip
