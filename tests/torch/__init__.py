"""The adapter for PyTorch, in an environment of its own: `make test-torch`."""
