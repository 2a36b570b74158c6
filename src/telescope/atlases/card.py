"""The card of an atlas, README.md: what was measured, with the front matter that the Hugging Face
hub reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..measures import HABIT_KEYS
from ..recording.heads import Heads

CLEAREST = 12  # heads that the card lists


def write_card(
    about: Mapping[str, Any], heads: Heads, *, texts: int, tokens: int, skipped: int
) -> str:
    """Return the card as Markdown."""
    model = about.get("model", {})
    kinds = {kind: len(heads.where(kind=kind)) for kind in (*HABIT_KEYS, "mixed")}
    lines = [
        "---",
        "tags: [telescope, attention, interpretability]",
        "configs:",
        *[line for name in ("heads", "evidence", "maps") for line in _config(name)],
        "---",
        f"# Atlas of the heads of a {model.get('class', 'model')}",
        "",
        f"{len(heads):,} heads over {texts:,} texts, {tokens:,} tokens, at most "
        f"{about.get('length')} tokens at once"
        + (f"; {skipped:,} texts could not be read." if skipped else "."),
        *_missing(heads.left_out),
        "",
        "`ts.open(folder)` opens it, `ts.compare(one, other)` compares two; the tables are Parquet.",
        "",
        "| kind | heads | share of the weight that names it |",
        "|---|---|---|",
        *[
            f"| {kind} | {count} | {HABIT_KEYS.get(kind, 'none clear')} |"
            for kind, count in kinds.items()
            if count
        ],
        "",
        "## The clearest heads",
        "| layer | head | kind | share |",
        "|---|---|---|---|",
        *_clearest(heads),
        "",
        "A share is the mean over all queries of the corpus that have a choice. How each is "
        "measured: docs/atlas.md",
        "of Telescope.",
    ]
    return "\n".join(lines) + "\n"


def _config(name: str) -> Sequence[str]:
    return (f"- config_name: {name}", f"  data_files: {name}.parquet")


def _missing(left_out: Sequence[str]) -> list[str]:
    """Return the paragraph that names the attentions without heads in the atlas; nothing where
    there are none.
    """
    return (
        ["", f"The heads of these attentions are missing: {', '.join(left_out)}."]
        if left_out
        else []
    )


def _clearest(heads: Heads) -> list[str]:
    named = [head for head in heads if head.kind != "mixed"]
    named.sort(key=lambda head: -float(getattr(head, head.kind)))
    return [
        f"| {head.layer} | {head.number} | {head.kind} | {getattr(head, head.kind):.0%} |"
        for head in named[:CLEAREST]
    ]
