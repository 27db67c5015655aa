"""Benchmarks on real parts: what durability costs, side by side in one run. Nothing here is asserted by a test."""
