"""The values that random command lines give to options: those that fit, and odd ones. {places} is
the folder of files.

`make_places` makes this folder: small models, texts, recordings, atlases, recipes and a trained
run.
"""

import json
from pathlib import Path
from typing import Any

TEXT = "Good morning. The man saw the astronomer with a telescope.\nHow are you?\n"

# What every option and argument takes, by command and name, or by name alone: ("", name).
FITTING: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "text"): ("Good morning.", "{places}/text.txt", "-", "How are you?"),
    ("", "prompt"): ("Good morning", "{places}/text.txt", "-"),
    ("", "sentence"): ("Good morning.", "The man saw"),
    ("", "name"): ("Ada Lovelace", "{places}/text.txt"),
    ("", "model"): ("{places}/translator", "{places}/luong"),
    ("generate", "model"): ("{places}/gpt",),
    ("explain", "model"): ("{places}/translator",),
    ("watch", "model"): ("{places}/gpt", "{places}/translator"),
    ("watch", "text"): ("{places}/text.txt", "{places}/lines.jsonl"),
    ("atlas", "model"): ("{places}/gpt",),
    ("", "beams"): ("1", "2"),
    ("", "n_best"): ("1", "2"),
    ("", "max_new_tokens"): ("1", "6"),
    ("", "temperature"): ("0", "0.8"),
    ("", "top_k"): ("1", "5"),
    ("", "top_p"): ("0.5", "1"),
    ("", "seed"): ("0", "7"),
    ("", "mute"): ("decoder.1.cross:2", "encoder.*:0,1", "blocks.0.self:1", "*"),
    ("", "hide"): ("Good", "the man"),
    ("", "example"): ("journey", "bank", "luong", "variance", "positions", "synthesizer"),
    ("", "query"): ("morning", "step"),
    ("", "between"): ("man,astronomer", "Good,morning"),
    ("", "layer"): ("0", "1", "-1"),
    ("", "head"): ("0", "3", "-1"),
    ("", "port"): ("0",),
    ("", "host"): ("127.0.0.1", "localhost"),
    ("", "device"): ("cpu", "cpu:0"),
    ("", "out"): ("out", "deep/er/out"),
    ("", "layers"): ("blocks.*", "0", "encoder.*"),
    ("", "keep"): ("summaries", "queries-keys", "steps"),
    ("", "store"): ("device", "ram", "disk"),
    ("", "tokens"): ("1", "12"),
    ("", "write"): ("0", "2"),
    ("", "texts"): ("{places}/text.txt", "{places}/lines.jsonl", "{places}/texts"),
    ("", "length"): ("4", "16"),
    ("", "batch"): ("1", "4"),
    ("", "column"): ("text",),
    ("", "dtype"): ("float32", "bfloat16"),
    ("", "before"): ("{places}/atlas",),
    ("", "after"): ("{places}/atlas", "{places}/other-atlas"),
    ("", "heads"): ("1", "5"),
    ("", "runs"): ("{places}/run.telescope", "{places}/atlas", "{places}"),
    ("lessons", "folder"): ("my-lessons", "deep/my-lessons"),
    ("serve", "model"): ("{places}/gpt", "{places}/translator"),
    ("", "recipe"): ("{places}/small.toml",),
    ("", "data"): ("{places}",),
    ("", "steps"): ("1", "2"),
    ("", "watch"): ("1", "2"),
    ("", "folders"): ("{places}/run",),
    ("", "split"): ("test", "validation"),
    ("", "task"): ("generate", "translate", "summarize"),
    ("", "file"): ("mine.toml", "deep/mine.toml"),
    ("", "train"): ("{places}/pairs.tsv", "{places}/text.txt"),
    ("", "source"): ("en",),
    ("", "target"): ("de",),
}

# Options that keep a command short, or let it work at all: they are given nearly always, and never
# a large number.
LIMITS = {
    ("generate", "max_new_tokens"),
    ("translate", "beams"),
    ("summarize", "beams"),
    ("generate", "beams"),
    ("translate", "n_best"),
    ("summarize", "n_best"),
    ("generate", "n_best"),
    ("train", "steps"),
    ("train", "out"),
    ("watch", "write"),
    ("watch", "tokens"),
    ("translate", "model"),
    ("summarize", "model"),
    ("generate", "model"),
    ("explain", "model"),
}

ODD_PATHS = (
    *(
        "",
        ".",
        "..",
        "~",
        "-",
        "missing",
        "missing/er",
        "a" * 300,
        "deep/" * 300,
        "{places}/text.txt/inside",
    ),
    *(
        "/proc/telescope",
        "/proc/self/mem",
        "/sys/telescope",
        "/dev/full/x",
        "/dev/null",
        "/dev/full",
        "{places}/loop",
    ),
    *(
        "{places}/empty.txt",
        "{places}/latin.txt",
        "{places}/zeros",
        "{places}/empty",
        "{places}/broken",
        "{places}",
    ),
    *(
        "{places}/gpt",
        "{places}/run.telescope",
        "{places}/atlas",
        "{places}/run",
        "{places}/small.toml",
    ),
    *(
        "name\udcff",
        "two\nlines",
        "{places}/gpt/config.json",
        "{places}/pairs.tsv",
        "\x1b[31m",
        "shakespear",
    ),
)
ODD_TEXTS = (
    *(
        "",
        " ",
        "\n",
        "x" * 2000,
        "word " * 400,
        "\udcff\udcfe",
        "a\x01\x1b[2J\x07b",
        "\u202e abc",
        "🔭" * 50,
        "[red]x[/red]",
    ),
    *(
        "--",
        "-x",
        "gpu",
        "0",
        "mps",
        "meta",
        "cuda",
        "cuda:99",
        "cuda:x",
        "xyz",
        "mkldnn",
        "cpu:7",
        "nan",
        "1e400",
        "{}",
        ",",
    ),
    *(
        "a,b",
        "decoder.9.cross:2",
        "*:99",
        ":",
        "blocks.0.self:x",
        "0.0.0.0.0",
        "256.1.1.1",
        "float64",
        "%s",
    ),
)
ODD_NUMBERS = (
    *(
        "",
        "x",
        "-1",
        "0",
        "1",
        "3",
        "1.5",
        "1e3",
        "nan",
        "inf",
        "-inf",
        "0x10",
        " 1",
        "1_0",
        "-0",
        "٣",
    ),
    *("99999999", "-99999999", "99999999999999999999", "1e-320", "1e308", "65536"),
)


def make_places(place: Path) -> int:
    """Make the files that command lines name."""
    _make_texts(place)
    _make_models(place)
    _make_run(place)
    return 0


def _make_texts(place: Path) -> None:
    contents: dict[str, bytes] = {
        "text.txt": TEXT.encode(),
        "texts/one.txt": TEXT.encode(),
        "lines.jsonl": b"".join(
            json.dumps({"text": line}).encode() + b"\n" for line in TEXT.splitlines()
        ),
        "latin.txt": "Müller\n".encode("latin-1"),
        "empty.txt": b"",
        "zeros": bytes(5000),
        "broken/config.json": b'{"telescope": 1, "model": []}',
        "pairs.tsv": b"en\tde\n"
        + b"Good morning.\tGuten Morgen.\nHow are you?\tWie geht es dir?\n" * 40,
    }
    for name, content in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    (place / "empty").mkdir()
    (place / "loop").symlink_to(place / "loop")


def _make_models(place: Path) -> None:
    import torch

    import telescope as ts
    from support import writers

    models: dict[str, Any] = {
        "translator": writers.translator(),
        "luong": writers.luong(),
        "gpt": writers.gpt(),
    }
    for name, model in models.items():
        model.save(place / name)
    gpt = models["gpt"]
    with torch.no_grad(), ts.watch(gpt, tokenizer=gpt.tokenizer) as recording:
        gpt(torch.tensor([gpt.tokenizer.encode("Good morning.").ids]))
    recording.save(place / "run.telescope")
    for name, texts in (("atlas", [TEXT, "How are you?"]), ("other-atlas", ["What is in a name?"])):
        ts.atlas(gpt, texts, out=place / name)


def _make_run(place: Path) -> None:
    """Write a recipe that trains in a second, and train it."""
    from support.recipes import small
    from telescope.tasks.learning.new_recipe import new_recipe
    from telescope.tasks.learning.train import read, train

    file = place / "small.toml"
    file.write_text(
        new_recipe("generate", str(file), train=str(place / "pairs.tsv"), source="en", target=None)
    )
    file.write_text(small(read(file)).to_toml())
    train(file, place / "run", data=place, report=lambda event: None)
