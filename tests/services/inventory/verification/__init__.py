"""Tests of the verification."""
