"""Text as training data: readers of corpora, and tokenizers that turn a text into ids and back.

May import: layers and models. Read first: corpora.py; tokenizer.py for ids, corpus_files.py for
files and folders.
"""
