"""Written in a moment."""
