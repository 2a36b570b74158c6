"""telescope train | evaluate | new recipe | atlas | compare: commands that take long, and what
reads the folders that they leave.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..words import hint
from .common import AsJson, Device, Plain, print_all, print_json, refuse

SHOWN = 20  # heads of a printed comparison, unless --heads says how many

DataFolder = Annotated[
    str | None,
    typer.Option(help="Folder with all data sets; without it, the folder named by TELESCOPE_DATA."),
]


def train(
    recipe: Annotated[
        str, typer.Argument(help="A TOML file; recipes/ holds those of the published results.")
    ],
    out: Annotated[
        str | None,
        typer.Option(help="Folder for the model; a run that was stopped in it continues."),
    ] = None,
    data: DataFolder = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the recipe's.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of the recipe's.")
    ] = None,
    watch: Annotated[
        int | None,
        typer.Option(
            help="Number of steps after which statistics of every head are written to TensorBoard, "
            "again and again."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Say what the training would do and how long it takes; write nothing."
        ),
    ] = False,
) -> None:
    """Train the model of a recipe. The same command continues a run that was stopped."""
    from ..tasks.learning import train as training

    # The command line counts more than the recipe.
    chosen = training.override(training.read(recipe), seed=seed, steps=steps, watch=watch)
    # --check writes nothing, so that --out may be missing.
    if check:
        for line in training.check(chosen, data=data, out=out):
            print(line, flush=True)
    elif out is None:
        raise ValueError(
            "--out is missing: it names the folder for the model, such as --out runs/mine"
        )
    else:
        training.train(chosen, out, data=data)


def recipe(
    context: typer.Context,
    task: Annotated[
        str, typer.Argument(help="What the model will do: translate, summarize or generate.")
    ],
    file: Annotated[
        str | None, typer.Argument(help="File to write; TASK.toml unless given.")
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            help="File of training data: .tsv, .csv, .jsonl, .json, .parquet or plain text."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Column to read from; guessed from the header unless given.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column to write; guessed from the header unless given.")
    ] = None,
    data: DataFolder = None,
) -> None:
    """Write a recipe for data of your own: a TOML file with a comment at each setting."""
    from ..files import atomic_file, check_can_write
    from ..tasks.learning.new_recipe import new_recipe

    if train is None:
        refuse(context, "data", "is the folder in which --train is looked up; add --train")
    # Check first, write last: a mistake leaves no half of a file.
    place = Path(file or f"{task}.toml")
    check_can_write(place)
    text = new_recipe(task, str(place), train=train, source=source, target=target, data=data)
    # Refuse to overwrite a recipe, which may have been edited by hand.
    if place.exists():
        raise ValueError(f"{place} exists; name another file: telescope new recipe {task} FILE")

    # The file appears under its name only when all of it is written.
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(place) as new:
        new.write_text(text, encoding="utf-8")
    print(f"{place} written. Next: telescope train {place} --check")


def evaluate(
    context: typer.Context,
    folders: Annotated[
        list[str],
        typer.Argument(
            help="Folders that telescope train wrote, or shipped models; for several, also the "
            "mean."
        ),
    ],
    data: DataFolder = None,
    split: Annotated[
        str, typer.Option(help="The part of the data to measure on: test or validation.")
    ] = "test",
    recipe: Annotated[
        str | None, typer.Option(help="Recipe to measure by, instead of the folder's own.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder for answers and figures, instead of FOLDER/evaluation."),
    ] = None,
    predict: Annotated[
        bool, typer.Option("--predict", help="Only write the answers, to be scored later.")
    ] = False,
    score: Annotated[
        bool, typer.Option("--score", help="Only score answers that --predict wrote.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure trained models. The models' answers and the figures are written to
    FOLDER/evaluation.
    """
    from ..tasks.learning import evaluate as evaluation

    # The two halves run on different machines: one with a GPU, one with the metrics.
    if predict and score:
        raise ValueError(
            "--predict and --score are the two halves of evaluate; leave both out to run the whole"
        )
    if score:
        refuse(context, "data", "holds the texts to answer, and --score reads answers")
    if predict:
        refuse(context, "as_json", "prints figures, and --predict measures none; leave one out")
    # The answers of several folders would overwrite each other.
    if out is not None and len(folders) > 1:
        raise ValueError(
            f"--out {out} holds the answers of one folder, not of {len(folders)}; leave it out"
        )
    # One line for each folder, as soon as it is measured.
    results = []
    for folder in folders:
        if not score:
            written = evaluation.predict(folder, data=data, split=split, recipe=recipe, out=out)
            # --predict ends here: --score scores its answers later.
            if predict:
                print(written)
                continue
        # Score the answers that were written just now, or by --predict before.
        result = evaluation.score(folder, split=split, recipe=recipe, out=out)
        results.append(result)
        if not as_json:
            figures = "   ".join(f"{name} {figure:.4f}" for name, figure in result.figures.items())
            print(f"{result.recipe}   {split} ({result.answers:,})   {figures}", flush=True)

    # JSON is one list, printed when all folders are measured.
    if as_json and results:
        print_json([asdict(result) for result in results], indent=1)
    # Several folders are runs of one recipe with different seeds.
    elif len(results) > 1:
        spread = evaluation.spread(results).items()
        figures = "   ".join(
            f"{name} {mean:.4f} ± {deviation:.4f}" for name, (mean, deviation) in spread
        )
        print(f"mean of {len(results)} runs   {figures}")


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
    import torch

    from ..atlases import atlas as make_atlas
    from ..files import check_can_write
    from ..models.saved.load import check_device
    from ..tasks.look import open_model

    # Read --dtype before the model is loaded.
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in dtypes:
        raise ValueError(f"--dtype {dtype} is no precision of a model; {hint(dtype, dtypes)}")
    # Each process of a machine has its own GPU.
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    # Before the model is loaded, which takes long: can it run, and can the result be kept?
    computes_on = check_device(device)
    check_can_write(out, name="--out")
    # Each process loads the whole model and reads its part of the texts.
    loaded, tokenizer = open_model(model)
    loaded = loaded.to(device=computes_on, dtype=dtypes[dtype]).eval()
    # A number counts layers, also from the end; any other text is a name or a pattern.
    is_number = layers is not None and layers.lstrip("-").isdecimal()

    found = make_atlas(
        loaded,
        texts,
        tokenizer=tokenizer,
        out=out,
        replace=replace,
        length=length,
        batch=batch,
        packed=packed,
        column=column,
        layers=int(layers) if layers is not None and is_number else layers,
    )
    # Of several processes the first one prints.
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print_json({"texts": found.texts, "tokens": found.tokens, "heads": [*found.rows()]})
        return
    print_all([found], plain)
    # A corpus may have thousands of broken texts; a few tell what is wrong.
    for sentence in [*found.skipped.values()][:5]:
        print(f"telescope: skipped {sentence}", file=sys.stderr)
    print(f"saved as {out}")


def compare(
    before: Annotated[Path, typer.Argument(help="Folder of an atlas.")],
    after: Annotated[
        Path, typer.Argument(help="Folder of another atlas, of a model of the same shape.")
    ],
    heads: Annotated[
        int | None,
        typer.Option(
            help="How many heads to show, those that changed the most: 20 unless given, and all "
            "with --json.",
            min=1,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    plain: Plain = False,
) -> None:
    """Rank what changed between two atlases: of two checkpoints, or of two models of one shape."""
    from ..atlases import Atlas
    from ..atlases import compare as compare_atlases

    # JSON holds every head, a screen those that changed the most.
    found = compare_atlases(Atlas.open(before), Atlas.open(after))
    if as_json:
        print_json(found[:heads].to_dict())
    else:
        print_all([found[: heads or SHOWN]], plain)
