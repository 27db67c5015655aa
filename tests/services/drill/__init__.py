"""Tests of the drill's own parts."""
