"""Every step of one attention, kept and shown: terminal, HTML, JSON, geometry.

Imports attention, engines and words. Read trace.py first: `trace` runs the steps, `Trace` holds them.
"""

from .trace import Row, Trace, trace

__all__ = ["Row", "Trace", "trace"]
