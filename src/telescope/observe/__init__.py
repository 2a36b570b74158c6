"""Looking: `trace` keeps every step of an attention, `survey` its exact summary, `watch` looks on at a whole model."""

from .recording import Recording
from .row import Row
from .saved.open import open_recording as open
from .survey import Survey, survey
from .trace import Trace, trace
from .watch import watch

__all__ = ["Recording", "Row", "Survey", "Trace", "open", "survey", "trace", "watch"]
