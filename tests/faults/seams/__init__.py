"""A process that dies, or sleeps, between any two steps of what it does."""
