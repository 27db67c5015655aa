"""Deaths, delays and races of the checkpoint store."""
