"""The recipes of the repository, reduced for tests."""

from dataclasses import replace
from pathlib import Path

from telescope.tasks.learning.train import read

RECIPES = Path(__file__).parents[2] / "recipes"
OURS = ("translate", "summarize", "generate")
FILES = [file for file in sorted(RECIPES.glob("*.toml")) if read(file).task in OURS]


def small(recipe, **training):
    """Return a recipe with a few steps of small batches, and a model, beams and texts as small as possible."""
    sizes = {"d_model": 16, "d_hidden": 16, "d_embedding": 16, "heads": 2}
    if recipe.task == "generate":
        sizes["max_positions"] = 16
    config = recipe.model.config
    config = replace(config, **{name: size for name, size in sizes.items() if hasattr(config, name)})
    recipe = replace(recipe, model=replace(recipe.model, config=config))
    if recipe.task != "generate":
        decoding = replace(recipe.decoding, longest=4, beams=min(2, recipe.decoding.beams), validated=2)
        recipe = replace(recipe, decoding=decoding)
        batch = {"tokens": 64}
    else:
        batch = {"rows": 2}
    usual = {"steps": 2, "epochs": None, "average_every": 1, "validate_every": 2, "warmup": 1, "log_every": 1}
    return recipe.training_with(**usual | batch | training)


def quiet(event):
    pass
