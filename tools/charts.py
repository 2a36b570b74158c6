"""Bar charts of a page, drawn from the page's own tables when the site is built.

A comment before a table says which columns are drawn, by number from 0, and what their unit is; a
line at `mark` is what the bars are compared with; `names` replaces the heads of the columns. The
first column names the rows. The chart stands above its table:

    <!-- chart: columns 2 3, unit "times the plain run", mark 1 -->
    | | plain | watched, top 8 | and `heads()` |

A cell counts by its first number, "1.26 to 1.53" by the mean of both; a cell without a number has
no bar. Colours are the theme's, so that a chart fits the light scheme and the dark one.
"""

import re
from html import escape
from math import log as ln

CHART = re.compile(
    r'^<!-- chart: columns ([\d ]+), unit "(.+?)"(?:, names "(.+?)")?(?:, mark ([\d.]+))?(, log)? -->'
    r"\n((?:\|.+\n)+)",
    re.M,
)
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
RANGE = re.compile(f"{NUMBER}(?: to {NUMBER})?")
WIDTH, NAMES, ROOM = 760, 230, 70  # pixels: the whole, the names of rows, the numbers behind bars
BAR, GAP, LETTER = 15, 9, 6.6


def with_charts(page):
    """Return a page with a chart above each table that asks for one."""
    return CHART.sub(lambda found: f"{chart(found)}\n\n{found[6]}", page)


def chart(found):
    """Return the drawing of a table, as SVG."""
    columns, unit, called, mark, log, table = found.groups()
    head, _, *rows = [cells_of(line) for line in table.splitlines()]
    chosen = [int(column) for column in columns.split()]
    bars = [(row[0], [value(row[column]) for column in chosen]) for row in rows]
    if not any(cell for _, row in bars for cell in row):
        raise ValueError(f"columns {columns} of the table with {head} hold no numbers to draw")
    names = called.split("; ") if called else [head[column] for column in chosen]
    return draw(bars, names, unit, float(mark) if mark else None, bool(log))


def cells_of(line):
    """Return the cells of a table's line as plain text."""
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return [re.sub(r"\[(.+?)\]\(.+?\)", r"\1", cell).replace("`", "") for cell in cells]


def value(cell):
    """Return the number that a cell stands for, and how the cell writes it, or None."""
    found = RANGE.match(cell)
    if found is None:
        return None
    ends = [float(number.replace(",", "")) for number in found.groups() if number]
    return sum(ends) / len(ends), found[0]


def draw(rows, names, unit, mark, log):
    """Return horizontal bars: one group a row, one colour a column."""
    numbers = [cell[0] for _, row in rows for cell in row if cell is not None]
    length = scale(min(numbers), max(*numbers, mark or 0.0), log)
    bars, y = legend(names, unit), 30
    for name, row in rows:
        drawn = [(place, cell) for place, cell in enumerate(row) if cell is not None]
        if not drawn:
            continue
        middle = y + len(drawn) * BAR / 2 + 4
        bars.append(text(NAMES - 8, middle, shortened(name), anchor="end"))
        for place, (number, written) in drawn:
            size = f'width="{length(number):.1f}" height="{BAR - 2}"'
            bars.append(f'<rect class="bar-{place}" x="{NAMES}" y="{y}" {size}/>')
            bars.append(text(NAMES + length(number) + 5, y + BAR - 4, written, small=True))
            y += BAR
        y += GAP
    line = ""
    if mark is not None:
        x = f"{NAMES + length(mark):.1f}"
        line = f'<line class="mark" x1="{x}" x2="{x}" y1="24" y2="{y - GAP}"/>'
    title = escape(f"{', '.join(names)}: {unit}")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{title}">'
        f"{line}{''.join(bars)}</svg>"
    )


def shortened(name):
    """Return the name of a row in the room that it has."""
    letters = int((NAMES - 8) / LETTER)
    return (
        name if len(name) <= letters else name[: letters - 1].rpartition(" ")[0].rstrip(",") + " …"
    )


def scale(least, most, log):
    """Return the function from a number to the length of its bar; a logarithmic one begins at half
    the smallest number.
    """
    room = WIDTH - NAMES - ROOM
    if log:
        return lambda number: room * ln(2 * number / least) / ln(2 * most / least)
    return lambda number: room * number / most


def legend(names, unit):
    """Return the colours' names and the unit, above the bars."""
    parts, x = [], NAMES
    for place, name in enumerate(names):
        parts.append(f'<rect class="bar-{place}" x="{x:.0f}" y="6" width="10" height="10"/>')
        parts.append(text(x + 15, 15, name))
        x += 30 + LETTER * len(name)
    parts.append(text(NAMES - 8, 15, unit, anchor="end", small=True))
    return parts


def text(x, y, words, anchor="start", small=False):
    """Return words at a place."""
    kind = ' class="small"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'
