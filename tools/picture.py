"""Draw docs/explain.svg, the picture of the first page: python tools/picture.py"""

from io import StringIO
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text

import telescope as ts
from telescope.tasks.explaining.examples import EXAMPLES

PAGE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; line-height: {line_height}px }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture() -> str:
    """Return the last scene of `telescope explain` as SVG: masked self-attention, and every product
    of one word.
    """
    scene = EXAMPLES["journey"](ts.softmax).scenes[-1]
    console = Console(
        record=True, width=84, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Group(scene.trace, Text(), scene.trace.row("starts")))
    return console.export_svg(title="telescope explain", code_format=PAGE, unique_id="telescope")


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "explain.svg"
    page.write_text(picture(), encoding="utf-8")
