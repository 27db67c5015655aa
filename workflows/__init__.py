"""Temporal workflows: deterministic, no I/O."""
