"""telescope train | evaluate"""

from dataclasses import asdict
from typing import Annotated

import typer

from .common import AsJson, print_json


def train(
    recipe: Annotated[str, typer.Argument(help="a TOML file; those of published results are in recipes/")],
    out: Annotated[str, typer.Option(help="the folder for the model; a run that was stopped goes on there")],
    data: Annotated[str | None, typer.Option(help="the folder of all data; TELESCOPE_DATA says it too")] = None,
    seed: Annotated[int | None, typer.Option(help="another seed than the recipe's")] = None,
    steps: Annotated[int | None, typer.Option(help="as many steps, instead of the recipe's")] = None,
    watch: Annotated[int | None, typer.Option(help="look at all heads every so many steps, in TensorBoard")] = None,
) -> None:
    """Train a model as a recipe says. Run the same command again to go on where it was stopped."""
    from ..tasks.learning.registry import read
    from ..tasks.learning.train import changed
    from ..tasks.learning.train import train as learn

    learn(changed(read(recipe), seed=seed, steps=steps, watch=watch), out, data=data)


def evaluate(
    folders: Annotated[
        list[str], typer.Argument(help="what telescope train wrote, or a shipped model; of several, the mean")
    ],
    data: Annotated[str | None, typer.Option(help="the folder of all data; TELESCOPE_DATA says it too")] = None,
    split: Annotated[str, typer.Option(help="test or validation")] = "test",
    recipe: Annotated[str | None, typer.Option(help="by which it is measured, if not by the folder's own")] = None,
    out: Annotated[str | None, typer.Option(help="where answers and figures are kept, if not in the folder")] = None,
    predict: Annotated[bool, typer.Option("--predict", help="only write what it answers, to be scored later")] = False,
    score: Annotated[bool, typer.Option("--score", help="only score what was written before")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure trained models. What they answer, and the figures, are kept in FOLDER/evaluation."""
    from ..tasks.learning import evaluate as measure

    if predict and score:
        raise ValueError("--predict and --score are the two halves of it; leave both out to get the whole")
    if out is not None and len(folders) > 1:
        raise ValueError(f"--out {out} holds the answers of one folder, not of {len(folders)}; leave it out")
    found = []
    for folder in folders:
        if not score:
            written = measure.predict(folder, data=data, split=split, recipe=recipe, out=out)
            if predict:
                print(written)
                continue
        found.append(measure.score(folder, split=split, recipe=recipe, out=out))
        if not as_json:
            figures = "   ".join(f"{name} {figure:.4f}" for name, figure in found[-1].figures.items())
            print(f"{found[-1].recipe}   {split} ({found[-1].answers:,})   {figures}", flush=True)
    if as_json and found:
        print_json([asdict(one) for one in found], indent=1)
    elif len(found) > 1:
        figures = "   ".join(f"{name} {mean:.4f} ± {by:.4f}" for name, (mean, by) in measure.spread(found).items())
        print(f"mean of {len(found)} runs   {figures}")
