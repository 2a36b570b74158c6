"""telescope train | evaluate"""

from dataclasses import asdict
from typing import Annotated

import typer

from .common import AsJson, print_json

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
    from ..tasks.learning.check import check as check_recipe
    from ..tasks.learning.registry import read
    from ..tasks.learning.train import override
    from ..tasks.learning.train import train as train_recipe

    chosen = override(read(recipe), seed=seed, steps=steps, watch=watch)
    if check:
        for line in check_recipe(chosen, data=data, out=out):
            print(line, flush=True)
    elif out is None:
        raise ValueError(
            "--out is missing: it names the folder for the model, such as --out runs/mine"
        )
    else:
        train_recipe(chosen, out, data=data)


def recipe(
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
    from pathlib import Path

    from ..files import check_can_write
    from ..files.atomic import atomic_file
    from ..tasks.learning.new_recipe import new_recipe

    place = Path(file or f"{task}.toml")
    check_can_write(place)
    text = new_recipe(task, str(place), train=train, source=source, target=target, data=data)
    if place.exists():
        raise ValueError(f"{place} exists; name another file: telescope new recipe {task} FILE")
    place.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(place) as new:
        new.write_text(text, encoding="utf-8")
    print(f"{place} written. Next: telescope train {place} --check")


def evaluate(
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

    if predict and score:
        raise ValueError(
            "--predict and --score are the two halves of evaluate; leave both out to run the whole"
        )
    if out is not None and len(folders) > 1:
        raise ValueError(
            f"--out {out} holds the answers of one folder, not of {len(folders)}; leave it out"
        )
    results = []
    for folder in folders:
        if not score:
            written = evaluation.predict(folder, data=data, split=split, recipe=recipe, out=out)
            if predict:
                print(written)
                continue
        result = evaluation.score(folder, split=split, recipe=recipe, out=out)
        results.append(result)
        if not as_json:
            figures = "   ".join(f"{name} {figure:.4f}" for name, figure in result.figures.items())
            print(f"{result.recipe}   {split} ({result.answers:,})   {figures}", flush=True)
    if as_json and results:
        print_json([asdict(result) for result in results], indent=1)
    elif len(results) > 1:
        spread = evaluation.spread(results).items()
        figures = "   ".join(
            f"{name} {mean:.4f} ± {deviation:.4f}" for name, (mean, deviation) in spread
        )
        print(f"mean of {len(results)} runs   {figures}")
