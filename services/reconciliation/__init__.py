"""Matching pending intents to receipts, and comparing both halves."""
