"""From a recipe and data to a model and its figures."""
