"""Both halves side by side."""
