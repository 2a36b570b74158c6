"""Train a model by a recipe and measure it: from a TOML file and data to a folder with weights and
figures.

May import training, text, decoding, models and files. Read train.py first, then recipe.py, which
says what a task provides; text_tasks.py and recall.py are the four tasks.
"""
