"""Train a model by a recipe and measure it: from a TOML file and data to a folder with weights and
figures.

May import training, text, decoding, models and watch. Read train.py first, then task.py, which says
what a task provides; translate.py, summarize.py, language_model.py and recall.py are the four
tasks.
"""
