"""The bench: both halves of the effects that recovery and the sweep meet."""

from tests.activities.bench import bench, inventory_service, journal_path

__all__ = ["bench", "inventory_service", "journal_path"]  # fixtures
