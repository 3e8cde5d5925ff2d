"""Click events for trying and testing: synthetic with a planted truth, or a Criteo file replayed."""

from rap_trainer.produce.directory import write_directory
from rap_trainer.produce.events import events
from rap_trainer.produce.options import Produce

__all__ = ["Produce", "events", "write_directory"]
