"""Looking: `trace` keeps every step of an attention, `survey` its exact summary at any length."""

from .row import Row
from .survey import Survey, survey
from .trace import Trace, trace

__all__ = ["Row", "Survey", "Trace", "survey", "trace"]
