"""Text as training data: readers of corpora, and tokenizers that turn a text into ids and back.

May import: files, layers and models. Read first: corpora.py; tokenizer.py for ids, data_files.py
for files and folders.
"""

from .corpora import (
    SUMMARIES,
    TEXTS,
    TRANSLATIONS,
    TextPair,
    group_targets,
    read_births,
    read_multi30k_merges,
    read_people,
    rename_speakers,
)
from .data_files import (
    PLAIN,
    TABLES,
    Split,
    column_names,
    data_folder,
    find_file,
    parse_json,
    read_lines,
    read_rows,
    read_running_text,
    split_of,
)
from .tokenizer import (
    bpe_from_merges,
    character_tokenizer,
    check_vocabulary_size,
    encode,
    encode_with_dropout,
    special_ids,
    train_bpe,
)

__all__ = [
    "PLAIN",
    "SUMMARIES",
    "TABLES",
    "TEXTS",
    "TRANSLATIONS",
    "Split",
    "TextPair",
    "bpe_from_merges",
    "character_tokenizer",
    "check_vocabulary_size",
    "column_names",
    "data_folder",
    "encode",
    "encode_with_dropout",
    "find_file",
    "group_targets",
    "parse_json",
    "read_births",
    "read_lines",
    "read_multi30k_merges",
    "read_people",
    "read_rows",
    "read_running_text",
    "rename_speakers",
    "special_ids",
    "split_of",
    "train_bpe",
]
