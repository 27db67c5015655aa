"""The mock inventory: a remote service that takes keyed calls."""
