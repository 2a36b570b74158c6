"""`new_recipe`: write a commented recipe for a user's own data, with a model that two CPU cores can
train.
"""

import json
from pathlib import Path

from ...text.corpus_files import data_folder
from ...text.own_files import PLAIN, TABLES, column_names, find_file
from ...words import hint

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
{columns}"""

PAIRS = """
[tokenizer]
size = {vocabulary} # pieces of the vocabulary, trained on your texts

[model]
kind = "Transformer"
max_positions = {longest}
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
longest = {longest_output}
"""

TRANSLATE = """source = {source} # the column to translate from; "1", "2", ... in a table without a header
target = {target}
longest = 128 # tokens; longer pairs are left out of the training
"""

SUMMARIZE = """document = {source} # the column of documents
summary = {target}
longest = 256 # tokens; longer documents are cut
longest_summary = 64 # tokens; pairs with longer summaries are left out of the training
"""

GENERATE = """{text}
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

WHAT = {
    "translate": "translates one line of text into another",
    "summarize": "writes a summary of a document",
    "generate": "continues a text",
}
SAMPLES = {"translate": '"..."', "summarize": "FILE", "generate": '"..."'}
EXAMPLES = {"translate": "pairs.tsv", "summarize": "documents.jsonl", "generate": "text.txt"}
COLUMNS = {
    "translate": ("source", "target"),
    "summarize": ("document", "summary"),
    "generate": ("text",),
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
    if task not in WHAT:
        raise ValueError(f'there is no recipe to "{task}"; {hint(task, WHAT)}')
    if task == "generate" and target is not None:
        raise ValueError(
            f'target="{target}" is for pairs of texts; a recipe to generate has one column, by '
            "source"
        )
    wanted = _columns(task, train, source, target, data)
    columns = ""
    if task == "translate":
        columns = TRANSLATE.format(source=json.dumps(wanted[0]), target=json.dumps(wanted[1]))
    elif task == "summarize":
        columns = SUMMARIZE.format(source=json.dumps(wanted[0]), target=json.dumps(wanted[1]))
    plain = {"translate": ', or two plain texts: "train.{}"', "generate": ", or plain text"}.get(
        task, ""
    )
    head = HEAD.format(
        what=WHAT[task], task=task, file=file, name=Path(file).stem, sample=SAMPLES[task]
    )
    body = DATA.format(
        train=json.dumps(train or EXAMPLES[task], ensure_ascii=False), plain=plain, columns=columns
    )
    if task == "generate":
        return (
            head
            + body
            + GENERATE.format(text=f"text = {json.dumps(wanted[0])}\n" if wanted else "")
        )
    sizes = {"translate": (8000, 128, 128), "summarize": (8000, 256, 64)}[task]
    return (
        head + body + PAIRS.format(vocabulary=sizes[0], longest=sizes[1], longest_output=sizes[2])
    )


def _columns(
    task: str, train: str | None, source: str | None, target: str | None, data: str | None
) -> list[str]:
    """Return the columns that the recipe will read; none for plain text."""
    given = [source, target][: len(COLUMNS[task])]
    if train is None:
        if task == "generate" and source is None:
            return []
        return [name or usual for name, usual in zip(given, COLUMNS[task], strict=True)]
    if "{}" in train:
        if None in given:
            raise ValueError(
                f"{train} is two plain texts; --source and --target say what stands in place of "
                f"{{}}"
            )
        return [str(name) for name in given]
    folder = data_folder(data)
    place = find_file(folder, train)
    header = column_names(folder, train)
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
    missing = [
        name for name in given if name is not None and name not in header and not name.isdecimal()
    ]
    if missing:
        raise ValueError(f'{train} has no column "{missing[0]}"; {hint(missing[0], header)}')
    usual = [name for name in COLUMNS[task] if name in header]
    guessed = usual if len(usual) == len(given) else [name for name in header if name not in given]
    found = [name or (guessed.pop(0) if guessed else "") for name in given]
    if "" in found:
        raise ValueError(
            f"{train} has the columns {', '.join(header)}; a recipe to {task} needs {len(given)}"
        )
    return found
