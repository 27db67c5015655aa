"""Tests of the activities: the client on the wire, the attempt, settle, the sweep page."""
