"""Recorded histories, and the program that records them."""
