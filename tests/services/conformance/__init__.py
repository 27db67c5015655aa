"""Tests of services/conformance."""
