"""Alembic migrations, one section per store."""
