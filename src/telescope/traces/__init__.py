"""Run an attention with every step kept, and show the steps: in a terminal, as HTML, as JSON, as
geometry.

May import attention, engines and words. Read trace.py first: `trace` runs the steps, `Trace` holds
them.
"""

from .trace import Row, Trace, trace

__all__ = ["Row", "Trace", "trace"]
