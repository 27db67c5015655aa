"""Faults out of process: real servers, real workers, real signals."""
