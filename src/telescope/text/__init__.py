"""Texts: the corpora that recipes learn from, and the tokenizers that turn a text into ids."""
