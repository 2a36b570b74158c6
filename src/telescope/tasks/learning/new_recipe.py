"""`new_recipe`: write a commented recipe for a user's own data, with a model that two CPU cores can
train.
"""

import json
from pathlib import Path
from typing import NamedTuple

from ...text import PLAIN, TABLES, column_names, data_folder, find_file
from ...words import hint

# The recipe is put together from texts, not from a recipe object: its comments are what it is for.
HEAD = """# Train a model that {what}.
#
#   telescope train {file} --check                  what it will do, and how long that takes
#   telescope train {file} --out runs/{name}
#   telescope evaluate runs/{name}
#   telescope {task} {sample} --model runs/{name}
#
# Every setting that is left out has a default. A misspelt one is an error that suggests the right one.
task = "{task}"

"""

DATA = """[data]
train = {train} # .tsv, .csv, .jsonl, .json, .parquet{plain}
# validation = "..." # without it, held_out % of the training data are held out
# test = "..." # without it, the test is the validation
held_out = 5
"""

# The two numbers are the model's positions and the most tokens that it writes.
PAIRS = """
[tokenizer]
size = 8000 # pieces of the vocabulary, trained on your texts

[model]
kind = "Transformer"
max_positions = %d
d_model = 128 # features of each token; a multiple of heads
encoder_blocks = 2
decoder_blocks = 2
heads = 4
d_hidden = 512
dropout = 0.1

[training]
steps = 4000
tokens = 2048 # of a batch, with padding
lr = 0.002 # the peak, reached after `warmup` steps
schedule = "cosine"
warmup = 400
clip = 1.0
label_smoothing = 0.1
average = 3 # keep the mean of the last three snapshots
average_every = 200
validate_every = 500 # the best checkpoint by validation is kept
save_every = 500 # a run that is stopped goes on from here
# precision = "bf16" # on a GPU
# capture = true # on a GPU: a step is one CUDA graph

[decoding]
beams = 4 # 1 is greedy
longest = %d
"""

TRANSLATE = """source = {0} # the column to translate from; "1", "2", ... in a table without a header
target = {1}
longest = 128 # tokens; longer pairs are left out of the training
"""

SUMMARIZE = """document = {0} # the column of documents
summary = {1}
longest = 256 # tokens; longer documents are cut
longest_summary = 64 # tokens; pairs with longer summaries are left out of the training
"""

GENERATE = """{0}
[tokenizer]
kind = "bpe" # or "characters"
size = 1024 # pieces of the vocabulary, trained on your text

[model]
kind = "GPT"
max_positions = 128 # tokens that are read at once in training
positions = "rotary" # longer texts can be written than were read
d_model = 128
blocks = 4
heads = 4
bias = false
dropout = 0.2

[training]
steps = 2000
rows = 16 # windows of a batch
lr = 0.001
schedule = "cosine"
warmup = 100
floor = 0.1
weight_decay = 0.1
clip = 1.0
validate_every = 250 # the best checkpoint by validation is kept
save_every = 500 # a run that is stopped goes on from here
# precision = "bf16" # on a GPU
# capture = true # on a GPU: a step is one CUDA graph
"""


class Template(NamedTuple):
    """What the recipe of a task has of its own.

    what     that a model of this task does
    sample   of what the model reads, on the command line
    example  of a file with training data
    plain    which plain texts can be training data
    columns  that are usual names in a table
    body     the rest of the recipe, with {0} and {1} in place of the columns
    """

    what: str
    sample: str
    example: str
    plain: str
    columns: tuple[str, ...]
    body: str


TEMPLATES = {
    "translate": Template(
        "translates one line of text into another",
        '"..."',
        "pairs.tsv",
        ', or two plain texts: "train.{}"',
        ("source", "target"),
        TRANSLATE + PAIRS % (128, 128),
    ),
    "summarize": Template(
        "writes a summary of a document",
        "FILE",
        "documents.jsonl",
        "",
        ("document", "summary"),
        SUMMARIZE + PAIRS % (256, 64),
    ),
    "generate": Template(
        "continues a text", '"..."', "text.txt", ", or plain text", ("text",), GENERATE
    ),
}


def new_recipe(
    task: str,
    file: str,
    *,
    train: str | None = None,
    source: str | None = None,
    target: str | None = None,
    data: str | None = None,
) -> str:
    """Return the text of a recipe, a TOML file with comments.

    task            translate, summarize or generate
    file            where the recipe will be written; its comments say so
    train           the file with the training data; an example's name where it is not given yet
    source, target  its columns; where they are not given, they are guessed from the header of
                    `train`: the first two columns, or those named document and summary. A table to
                    generate from has one column, `source`
    data            the folder of all data, in which `train` is looked up too

    Raises ValueError for an unknown task, a missing file, and columns that the file does not have.
    """
    if task not in TEMPLATES:
        raise ValueError(f'there is no recipe to "{task}"; {hint(task, TEMPLATES)}')
    if task == "generate" and target is not None:
        raise ValueError(
            f'target="{target}" is for pairs of texts; a recipe to generate has one column, by '
            "source"
        )
    template = TEMPLATES[task]
    columns = [json.dumps(name) for name in _columns(task, train, source, target, data)]
    if task == "generate":  # plain text has no column, and the recipe no line for it
        columns = [f"text = {columns[0]}\n" if columns else ""]
    # JSON quotes a text as TOML does.
    head = HEAD.format(
        what=template.what, task=task, file=file, name=Path(file).stem, sample=template.sample
    )
    train_file = json.dumps(train or template.example, ensure_ascii=False)
    table = DATA.format(train=train_file, plain=template.plain)
    return head + table + template.body.format(*columns)


def _columns(
    task: str, train: str | None, source: str | None, target: str | None, data: str | None
) -> list[str]:
    """Return the columns that the recipe will read; none for plain text."""
    known = TEMPLATES[task].columns
    given = [source, target][: len(known)]
    # Without a file, the usual names stand for the columns.
    if train is None:
        if task == "generate" and source is None:
            return []
        return [name or usual for name, usual in zip(given, known, strict=True)]
    # Two plain texts, such as train.en and train.de for "train.{}".
    if "{}" in train:
        if None in given:
            raise ValueError(
                f"{train} is two plain texts; --source and --target say what stands in place of "
                f"{{}}"
            )
        return [str(name) for name in given]

    # Guess from the header of the table.
    folder = data_folder(data)
    place = find_file(folder, train)
    header = column_names(folder, train)
    # Plain text.
    if task == "generate" and not header:
        return []
    if not header and Path(place.name.removesuffix(".gz")).suffix.lower() in PLAIN:
        raise ValueError(
            f"{train} is plain text, and a recipe to {task} needs pairs; {', '.join(TABLES)} hold "
            "them"
        )
    if not header:
        raise ValueError(
            f"{train} is empty; a recipe to {task} needs a table with {len(given)} columns"
        )
    # A number names a column of a table without a header.
    missing = [
        name for name in given if name is not None and name not in header and not name.isdecimal()
    ]
    if missing:
        raise ValueError(f'{train} has no column "{missing[0]}"; {hint(missing[0], header)}')
    usual = [name for name in known if name in header]
    # The usual names if all are there, else the columns from left to right.
    guessed = usual if len(usual) == len(given) else [name for name in header if name not in given]
    # What was not given is taken from the guesses, in their order.
    found = [name or (guessed.pop(0) if guessed else "") for name in given]
    if "" in found:
        raise ValueError(
            f"{train} has the columns {', '.join(header)}; a recipe to {task} needs {len(given)}"
        )
    return found
