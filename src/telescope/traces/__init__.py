"""Run an attention with every step kept, and show the steps: in a terminal, as HTML, as JSON, as
geometry.

May import attention, engines, token_kinds and words. Read trace.py first: `trace` runs the steps,
`Trace` holds them. Other rooms render their tables and numbers by render.py.
"""

from ..engines import formulas
from ..printed import FirstThatFits, PlainTable, PrintedTable, render_text
from .plane import Plane, cosines, nearness, plane
from .progress import Advance, showing_progress
from .render import (
    DIGITS,
    DIGITS_OF_FLOAT64,
    background,
    format_number,
    indent,
    json_number,
    json_numbers,
    number_cell,
    render_table,
    round_numbers,
    shortest_numbers,
    table_rows,
    text_colour,
)
from .trace import PAIR_STEPS, Row, Trace, score_products, trace
from .whole_words import INCOMPLETE, SPACE, Span, Words, token_label

__all__ = [
    "DIGITS",
    "DIGITS_OF_FLOAT64",
    "INCOMPLETE",
    "PAIR_STEPS",
    "SPACE",
    "Advance",
    "FirstThatFits",
    "PlainTable",
    "Plane",
    "PrintedTable",
    "Row",
    "Span",
    "Trace",
    "Words",
    "background",
    "cosines",
    "format_number",
    "formulas",
    "indent",
    "json_number",
    "json_numbers",
    "nearness",
    "number_cell",
    "plane",
    "render_table",
    "render_text",
    "round_numbers",
    "score_products",
    "shortest_numbers",
    "showing_progress",
    "table_rows",
    "text_colour",
    "token_label",
    "trace",
]
