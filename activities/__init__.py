"""Temporal activities: the named contracts, and the code that does I/O for them."""
