"""Campaigns against the inventory service: real processes, real HTTP, and every answer held against what is kept."""
