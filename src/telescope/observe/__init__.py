"""Looking: `trace` keeps every step of an attention."""

from .trace import Row, Trace, trace

__all__ = ["Row", "Trace", "trace"]
