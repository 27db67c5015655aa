"""Fault campaigns on real parts: processes, proxy, demo."""
