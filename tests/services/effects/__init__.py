"""Tests of the effect protocol."""
