"""Tests of recovery and the sweep, on a real journal and the real inventory."""
