"""telescope atlas | compare"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..words import hint
from .common import AsJson, Device, Plain, print_all, print_json


def atlas(
    model: Annotated[
        Path,
        typer.Option(
            help="A shipped model, or a folder with a tokenizer.json: saved by telescope or by "
            "Hugging Face."
        ),
    ],
    texts: Annotated[
        list[Path],
        typer.Option(
            "--texts", help="A .txt, .jsonl or .parquet file, or a folder of them. Repeatable."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder to write the atlas to, for ts.open. All processes must see it."),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the atlas that --out holds.")
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(
            help="Longest sequence in tokens; longer texts are cut. Default: the model's own."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Number of sequences that the model reads at once.", min=1)
    ] = 8,
    packed: Annotated[
        bool, typer.Option("--packed", help="Join texts to sequences of equal length.")
    ] = False,
    column: Annotated[
        str, typer.Option(help="Field of a .jsonl line, or column of a .parquet file.")
    ] = "text",
    layers: Annotated[
        str | None,
        typer.Option(
            help='Attentions to measure: a name, a pattern such as "decoder.*", or a number.'
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Precision of the model: float32, bfloat16 or float16.")
    ] = "float32",
    device: Device = "cpu",
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Measure every head of a model over a corpus. The same command goes on where a stopped run
    was.

    Under torchrun or accelerate launch, all processes share the texts: torchrun --nproc-per-node 8
    -m telescope.cli atlas ...
    """
    import os

    import torch

    from ..atlases import atlas as make_atlas
    from ..files.writable import check_can_write
    from ..models import check_device
    from ..tasks.look import open_model

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in dtypes:
        raise ValueError(f"--dtype {dtype} is no precision of a model; {hint(dtype, dtypes)}")
    if device == "cuda":  # each process of a machine has its own GPU
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    computes_on = check_device(device)
    check_can_write(out, name="--out")
    loaded, tokenizer = open_model(model)
    loaded = loaded.to(device=computes_on, dtype=dtypes[dtype]).eval()
    chosen = int(layers) if layers is not None and layers.lstrip("-").isdecimal() else layers
    options: dict[str, Any] = {
        "length": length,
        "batch": batch,
        "packed": packed,
        "column": column,
        "layers": chosen,
    }
    first = os.environ.get("RANK", "0") == "0"
    report = _reporter() if first else None
    try:
        found = make_atlas(
            loaded, texts, tokenizer=tokenizer, out=out, replace=replace, report=report, **options
        )
    finally:
        if report is not None and sys.stderr.isatty():
            print(file=sys.stderr)
    if not first:
        return
    if as_json:
        print_json({"texts": found.texts, "tokens": found.tokens, "heads": [*found.rows()]})
        return
    print_all([found], plain)
    for sentence in [*found.skipped.values()][:5]:
        print(f"telescope: skipped {sentence}", file=sys.stderr)
    print(f"saved as {out}")


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of an atlas.")],
    after: Annotated[
        Path, typer.Argument(help="Folder of another atlas, of a model of the same shape.")
    ],
    heads: Annotated[
        int, typer.Option(help="How many heads to show, those that changed the most.", min=1)
    ] = 20,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Rank what changed between two atlases: of two checkpoints, or of two models of one shape."""
    from ..atlases import Atlas
    from ..atlases import compare as compare_atlases

    found = compare_atlases(Atlas.open(before), Atlas.open(after))
    if as_json:
        print_json(found.to_dict())
    else:
        print_all([found[:heads]], plain)


def _reporter() -> Callable[[Any], None]:
    """Return a report to standard error: one line that is rewritten on a terminal, a line a minute
    elsewhere.
    """
    from time import monotonic

    from ..training.progress import format_duration

    last = 0.0

    def report(progress: Any) -> None:
        nonlocal last
        now = monotonic()
        on_terminal = sys.stderr.isatty()
        if now - last < (0.2 if on_terminal else 60.0):
            return
        last = now
        left = (
            ""
            if progress.seconds_left != progress.seconds_left
            else f"{format_duration(progress.seconds_left)} left"
        )
        bar = "█" * round(24 * progress.done) + "░" * (24 - round(24 * progress.done))
        skipped = f"  {progress.skipped:,} skipped" if progress.skipped else ""
        line = (
            f"{progress.texts:,} texts  {progress.tokens:,} tokens  "
            f"{progress.tokens_per_second:,.0f} tokens/s"
        )
        print(
            f"{line}  {bar} {progress.done:.0%}  {left}{skipped}",
            end="\r" if on_terminal else "\n",
            file=sys.stderr,
        )
        sys.stderr.flush()

    return report
