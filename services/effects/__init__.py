"""The effect protocol: pure types and decisions, on the standard library and rfc8785 alone."""
