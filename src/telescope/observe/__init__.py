"""Looking: `trace` keeps every step of an attention."""

from .row import Row
from .trace import Trace, trace

__all__ = ["Row", "Trace", "trace"]
