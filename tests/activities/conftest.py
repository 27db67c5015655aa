"""The bench: both halves of the effects that activities meet; and the line to a raw peer."""

from tests.activities.bench import bench, inventory_service, journal_path
from tests.activities.sending import line
from tests.activities.story import story

__all__ = ["bench", "inventory_service", "journal_path", "line", "story"]  # fixtures
