"""Files of every kind that Telescope reads, corrupted at random: each must open, or be refused in one sentence.

A file is taken from what Telescope itself writes, or from the data of the tests, and changed in its structure (a value
of another type, a field that is missing, duplicated or misspelt, numbers out of range, nesting, strange characters;
wrong descriptions of tensors) or in its bytes (flipped, truncated, swapped, replaced by a folder, a link or a pipe). It
is then opened and used as a user would.

A failure is any exception but the documented one, a message of several lines, more than ten seconds or two gigabytes,
or the end of the process.
"""

import gzip
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from .supervisor import ROOT, Done, WrongError

UNIT = "files"
SECONDS = 10.0  # that one file may take of a core
HUNG = 60.0  # seconds by the clock, on a machine that has other things to do
BYTES = 2 << 30

DEEP, MANY = "@deep@", "@many@"  # what json.dumps cannot write; see `dumped`
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**31 - 1, 2**63, 2**63 - 1, -(2**63), 10**30, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
    *("", "x", "0", "\ud800", "\0", "\n", "a" * 5000, "../../etc/passwd", "é", "\u202e", "causal", "softmax"),
    *([], {}, [[]], [None], {"": None}, ["x"], [-1], [0] * 3, [1.5], [1e400], DEEP, MANY),
    *({"is": "Causal"}, {"is": "Mask"}, {"is": "Both", "masks": []}, {"is": "Window", "size": 1.5}, {"is": "Dot"}),
    *({"is": "Attention"}, {"is": "Combination", "masks": ["x"]}, {"is": "OfPositions", "function": "x"}),
    *({"tensor": "attention.0"}, {"tensor": "nothing"}, {"normalizer": "by_sum"}, {"untold": "mask", "name": "x"}),
)
# Parts of a definition, most of which could stand in one; whether they fit is what has to be found.
CAUSAL, TENSOR = {"is": "Causal"}, {"tensor": "attention.0"}
PARTS: tuple[Any, ...] = (
    *(
        CAUSAL,
        {"is": "Everyone"},
        {"is": "Window", "size": 2},
        {"is": "Prefix", "size": 3},
        {"is": "General", "W": TENSOR},
    ),
    *({"is": "Both", "masks": [CAUSAL, {"is": "Window", "size": 2**40}]}, {"is": "Opposite", "mask": CAUSAL}),
    *({"is": kind, field: TENSOR} for kind, field in (("Lengths", "lengths"), ("Left", "left"), ("Keep", "keep"))),
    *({"is": kind, "tensor": TENSOR} for kind in ("FromTensor", "FromAdditive")),
    *({"is": "Documents", "keys": TENSOR}, {"is": "Alibi", "slopes": TENSOR}, {"is": "Relative", "table": TENSOR}),
    *({"is": "Additive", "W_q": TENSOR, "W_k": TENSOR, "v": TENSOR}, {"untold": "bias", "name": "mine"}),
    *(
        {"is": "Renumbered", "mask": {"is": "Keep", "keep": TENSOR}, "numbering": numbering}
        for numbering in (
            {"is": "LaterKeys", "gone": 2},
            {"is": "SomeHeads", "which": TENSOR, "of": 4},
            {"is": "SomeQueries", "which": TENSOR, "of": [5, 5]},
            {"is": "SomeSequences", "which": TENSOR, "of": 2},
            {"is": "BeforeRoom", "keys": 9, "behind": TENSOR},
        )
    ),
)
Files = dict[str, bytes]


# --------------------------------------------------------------------------------------------------- changes to a file


def dumped(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=True)
    deep = "[" * 3000 + "]" * 3000
    return text.replace(f'"{DEEP}"', deep).replace(f'"{MANY}"', "[" + "0," * 200_000 + "0]").encode()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path of every value inside."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*at, key))


def reach(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(value: Any, dice: Random) -> Any:
    """Return a JSON value with one change inside."""
    found = list(places(value))
    inside = [path for path in found if "attention" in path]
    if inside and dice.random() < 0.5:
        *path, last = dice.choice(inside)
        reach(value, tuple(path))[last] = deepcopy(dice.choice((*PARTS, *PARTS, *STRANGE)))
        return value
    *path, last = dice.choice(found[1:] if len(found) > 1 else [(None,)])
    if last is None:
        return deepcopy(dice.choice(STRANGE))
    parent = reach(value, tuple(path))
    old = parent[last]
    match dice.randrange(9):
        case 0:
            del parent[last]
        case 1 if isinstance(parent, dict):
            parent[dice.choice([f"{last}x", "", "\ud800", str(last)[:-1], str(last).upper()])] = parent.pop(last)
        case 2:
            parent[last] = deepcopy(reach(value, dice.choice(found)))  # another part of itself
        case 3 if isinstance(old, int | float) and old == old:
            numbers = (-old, old + 1, old - 1, old * 2, old * 10**20, float(old) if abs(old) < 1e300 else 0.5, str(old))
            parent[last] = dice.choice(numbers)
        case 4:
            parent[last] = [old] if dice.random() < 0.5 else {"is": old}
        case 5 if isinstance(parent, list):
            parent.insert(last, old)
        case _:
            parent[last] = deepcopy(dice.choice(STRANGE))
    return value


def of_json(contents: bytes, dice: Random) -> bytes:
    try:
        value = json.loads(contents)
    except ValueError:
        return of_bytes(contents, dice)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        value = changed(value, dice)
    made = dumped(value)
    if dice.random() < 0.03 and made.startswith(b"{") and isinstance(value, dict) and value:
        name = next(iter(value))
        made = b"{" + dumped(name) + b":" + dumped(value[name]) + b"," + made[1:]  # the same field twice
    return made


def of_safetensors(contents: bytes, dice: Random) -> bytes:
    """Change the header as JSON, with the right length, or change the numbers."""
    try:
        length = struct.unpack("<Q", contents[:8])[0]
        header, numbers = json.loads(contents[8 : 8 + length]), bytearray(contents[8 + length :])
    except (ValueError, struct.error):
        return of_bytes(contents, dice)
    match dice.randrange(6):
        case 0 if len(numbers) > 8:
            at = dice.randrange(len(numbers) - 8)
            numbers[at : at + 8] = dice.choice([b"\xff" * 8, b"\x00" * 8, dice.randbytes(8), struct.pack("<q", 2**40)])
        case 1:
            return struct.pack("<Q", dice.choice([0, length + 1, length - 1, 2**63, 2**64 - 1])) + contents[8:]
        case 2:
            names = [name for name in header if name != "__metadata__"]
            tensor = header[dice.choice(names)]
            tensor["dtype"] = dice.choice(["F16", "BF16", "F32", "I32", "I64", "U8", "BOOL", "F8_E4M3", "F4", "x"])
            if tensor["shape"] and dice.random() < 0.7:
                size = {"F16": 2, "BF16": 2, "F32": 4, "I32": 4, "I64": 8}.get(tensor["dtype"], 1)
                first, past = tensor["data_offsets"]
                tensor["shape"] = [(past - first) // size] if dice.random() < 0.5 else [1, (past - first) // size]
        case 3:
            names = [name for name in header if name != "__metadata__"]
            dice.choice([list.reverse, list.clear, lambda it: it.insert(0, 1)])(header[dice.choice(names)]["shape"])
        case _:
            header = changed(header, dice)
    made = dumped(header)
    return struct.pack("<Q", len(made)) + made + bytes(numbers)


def of_bytes(contents: bytes, dice: Random) -> bytes:
    if not contents:
        return dice.randbytes(9)
    corrupted, at = bytearray(contents), dice.randrange(len(contents))
    match dice.randrange(6):
        case 0:
            corrupted[at] ^= 1 << dice.randrange(8)
        case 1:
            del corrupted[at:]
        case 2:
            corrupted[at:at] = dice.choice(
                [b"\xff\xfe", b"\0", b"\r", "\u2028\ufeff".encode(), b"9" * 5000, b"[" * 9000]
            )
        case 3:
            corrupted[at : at + 4] = struct.pack("<i", dice.choice([-1, 0, 2**31 - 1, -(2**31), 5]))
        case 4:
            corrupted += dice.randbytes(dice.choice([1, 8, 500]))
        case _:
            del corrupted[at : at + dice.choice([1, 4, 40])]
    return bytes(corrupted)


VALUE = ("99999999999999999999999", "10000000000", "1000000", "-1", "0", "1e400", "nan", "inf", "1.5", "'x'", "''")
VALUE += ("[]", "{}", "[1]", "['generate']", "true", "1979-05-27", "'\u2028'", "2", "300")


def of_toml(contents: bytes, dice: Random) -> bytes:
    """Change a line: another value, no value, duplicated, misspelt or removed; or rename a table."""
    lines = contents.decode("utf-8").split("\n")
    parsed = [i for i, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    tables = [i for i, line in enumerate(lines) if line.startswith("[")]
    for _ in range(dice.choice((1, 1, 2))):
        at = dice.choice(parsed or [0])
        name, _, value = lines[at].partition(" = ")
        match dice.randrange(8):
            case 0:
                lines[at] = ""
            case 1:
                lines[at] = f"{name[:-1] or 'x'} = {value}"
            case 2:
                lines[at] += "\n" + lines[at]
            case 3 if tables:
                lines[dice.choice(tables)] = dice.choice(["", "[nothing]", "[[model]]", "[model.more]", "[training]"])
            case 4:
                lines[at] = f"{name} = {'[' * 3000}{']' * 3000}" if dice.random() < 0.3 else name
            case _:
                lines[at] = f"{name} = {dice.choice(VALUE)}"
    return "\n".join(lines).encode()


def of_text(contents: bytes, dice: Random) -> bytes:
    """Change lines and columns; where the text is JSON, its structure."""
    if contents[:1] in b"[{" and dice.random() < 0.7:
        first, newline, rest = contents.partition(b"\n")
        return of_json(first, dice) + newline + rest
    lines = contents.split(b"\n")
    at = dice.randrange(len(lines))
    match dice.randrange(5):
        case 0:
            lines[at] += b"\t" + lines[at]
        case 1:
            del lines[at]
        case 2:
            lines[at] = dice.choice([b"", b"\t", b"\xff", b"\0", "\u2028".encode(), b"x" * 9000])
        case _:
            return of_bytes(contents, dice)
    return b"\n".join(lines)


def of_gzip(contents: bytes, dice: Random) -> bytes:
    chance = dice.random()
    if chance < 0.01:
        return gzip.compress(bytes(1 << 20)) * 4096  # four gigabytes
    if chance < 0.3:
        return of_bytes(contents, dice)
    return gzip.compress(of_text(gzip.decompress(contents), dice))


BY_ENDING: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": of_json,
    ".safetensors": of_safetensors,
    ".toml": of_toml,
    ".gz": of_gzip,
    ".bin": of_bytes,
}


def corrupt(folder: Path, files: Files, dice: Random) -> str:
    """Change one or two of the files in the folder; return what was done."""
    names, done = sorted(files), []
    chosen = dice.sample(names, min(len(names), dice.choice((1, 1, 1, 2))))
    if "recording.json" in files and dice.random() < 0.5:
        chosen = ["recording.json"]  # which describes nearly everything
    for name in chosen:
        file = folder / name
        contents = files[name]
        kind = BY_ENDING.get(file.suffix, of_text)
        chance = dice.random()
        if chance < 0.75:
            done.append(f"{name} by {kind.__name__}")
            file.unlink(missing_ok=True)
            file.write_bytes(kind(contents, dice))
        elif chance < 0.87:
            done.append(f"{name} by of_bytes")
            file.unlink(missing_ok=True)
            file.write_bytes(of_bytes(contents, dice))
        else:
            done.append(f"{name} {_otherwise(file, names, files, dice)}")
    return ", ".join(done)


def _otherwise(file: Path, names: list[str], files: Files, dice: Random) -> str:
    """Replace the file by something that is not a file of its kind."""
    file.unlink(missing_ok=True)
    what = dice.choice(("gone", "another", "folder", "pipe", "link out", "link in a circle", "empty", "device"))
    match what:
        case "another":
            file.write_bytes(files[dice.choice(names)])
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "link out":
            outside = file.parents[len(Path(file.name).parts)] / "outside"
            outside.write_bytes(files[dice.choice(names)])
            file.symlink_to(outside)
        case "link in a circle":
            file.symlink_to(file)
        case "empty":
            file.write_bytes(b"")
        case "device":
            file.symlink_to("/dev/zero")
    return what


# --------------------------------------------------------------------------------------------- the files to change


@dataclass(frozen=True)
class Kind:
    """Files of one kind: `made` are valid ones; `use` opens a folder and reads everything in it."""

    name: str
    share: int
    made: Callable[[], list[Files]]
    use: Callable[[Path, Random], object]
    before: Callable[[Files, Random], Files] = lambda files, dice: files


def contents_of(folder: Path) -> Files:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def made_by(*makers: Callable[[Path], object]) -> list[Files]:
    files = []
    for make in makers:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder) / "made")
            files.append(contents_of(Path(folder) / "made"))
    return files


@cache
def recordings() -> list[Files]:
    import torch

    import telescope as ts
    from exploring import recorded
    from watching import Museum, Translator, filled, sequence

    torch.manual_seed(0)
    ids = torch.tensor([[0, 0, 0, 1, 1]])
    masks = (
        (ts.causal & ts.window(3)) | ts.prefix(1),
        ~ts.documents(ids) & ts.padding(keep=torch.tensor([[True] * 4 + [False]])),
        ts.padding([4]) & ts.from_tensor(torch.rand(1, 2, 5, 5) > 0.3),
        ts.padding(left=[1]) & ts.causal,
    )
    biases = (ts.alibi(2), ts.relative(torch.randn(2, 5)), ts.from_additive(torch.randn(5, 5)), None)

    def watched(keep: str, make: Callable[[], Any], **options: Any) -> Callable[[Path], object]:
        def save(place: Path) -> None:
            model = filled(make(), torch.float32)
            with ts.watch(model, keep=keep, **options) as recording, torch.no_grad():
                model(sequence(5).float(), sequence(4, seed=1).float())
            recording.save(place)

        return save

    def of(mask: Any, bias: Any, **options: Any) -> Callable[[Path], object]:
        attention = ts.Attention(mask=mask, bias=bias, softcap=3.0 if bias is None else None, sink=0.5)
        return recorded(5, d=4, attention=attention, tokens=["a", ".", "the"], **options).save

    return made_by(
        watched("summaries", Translator, map=(2, 2), layers="encoder.*"),
        watched("queries-keys", Translator, heads=[1, 0], queries=[0, -1], layers="decoder.*"),
        watched("steps", Translator, layers="decoder.0.*"),
        watched("steps", Museum, layers=["many", "synthetic", "general", "concat"]),
        watched("queries-keys", Museum, layers=["many", "concat"], heads=[0]),
        *(of(mask, bias, keep=keep) for mask, bias in zip(masks, biases, strict=True) for keep in KEEPS),
    )


KEEPS = ("summaries", "queries-keys", "steps")


def without_checksums(files: Files, dice: Random) -> Files:
    """Return the recording as earlier versions wrote it: its checksums do not reveal the change."""
    if dice.random() < 0.15:
        return files
    parsed = json.loads(files["recording.json"])
    for part in (parsed, *(call for attention in parsed["attentions"] for call in attention["calls"])):
        part.pop("crc32", None)
    return files | {"recording.json": dumped(parsed)}


def use_recording(folder: Path, dice: Random) -> None:
    import telescope as ts

    recording = opened(lambda: ts.open(folder))
    use = dice.randrange(3)
    repr(recording)
    if use == 0:
        recording.heads()
    for watched in recording.values():
        for call in watched.calls:
            if use == 1:
                call.survey()
            elif call.heads:
                call.head(call.heads[-1])
            if recording.keep == "steps" and use == 2:
                call.trace()
    if use == 2:
        ask_page(recording, dice)


def ask_page(recording: Any, dice: Random) -> None:
    """Send the first requests of the page."""
    from telescope.explorer.api import Api
    from telescope.explorer.library import Library

    library = Library({})
    run = library.add(recording, "run", "rev").name
    api = Api(library)
    must_answer(api.answer("GET", "/runs", {}))
    if library.recordings[run].views:
        what = dice.choice(["heads", "trace", "tokens", "geometry", "alignment", "map", "cells"])
        must_answer(api.answer("GET", f"/runs/{run}/{what}", {"l": "0", "h": "0", "i": "0", "j": "0", "axis": "q"}))


def must_answer(answer: Any) -> None:
    if answer.status not in (200, 201):
        parsed = json.loads(answer.body)["error"]["message"]
        if answer.status not in (400, 404, 405, 409, 422) or not parsed or "\n" in parsed:
            raise AssertionError(f"{answer.status}: {parsed}")


@cache
def models() -> list[Files]:
    import torch

    import telescope as ts
    import writers
    from telescope.models import GPT, Encoder, EncoderConfig, GPTConfig

    config = GPTConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2)
    own = ts.Attention(mask=ts.causal & ts.window(3), bias=ts.relative(torch.nn.Parameter(torch.randn(2, 5))), sink=0.5)
    encoder = writers.diced(Encoder(EncoderConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2)))
    makers = (
        writers.gpt(max_positions=16, blocks=1),
        writers.gpt(max_positions=16, blocks=1, positions="rotary", key_heads=2, norm="rms", gated=True, window=4),
        writers.translator(encoder_blocks=1, decoder_blocks=1),
        writers.luong(),
        encoder.to(torch.bfloat16),
        writers.diced(GPT(config, attention=own)),
    )
    return made_by(*(model.save for model in makers))


@cache
def foreign() -> list[Files]:
    """Return folders of Hugging Face's format, as `ts.export` writes them."""
    import telescope as ts
    import writers
    from telescope.models import Encoder, EncoderConfig

    gpt = {"max_positions": 16, "blocks": 1}
    llama = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False, "key_heads": 2}
    bert = EncoderConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2)
    exported = (writers.gpt(**gpt), writers.gpt(**gpt, **llama), writers.diced(Encoder(bert)))
    found: list[Files] = []
    for model in exported:
        try:
            found += made_by(lambda place, model=model: ts.export(model, place))
        except ValueError:  # of another shape than the family has
            continue
    assert len(found) > 1
    return found


def use_model(folder: Path, dice: Random) -> None:
    import torch

    import telescope as ts
    from telescope.models import GPT, Encoder
    from telescope.tasks.writing.rewrite import encode_text

    model = opened(lambda: ts.load(folder, dtype=torch.float32))  # as commands do: a file may hold several dtypes
    if isinstance(model, GPT | Encoder):
        with torch.no_grad():
            model(torch.tensor([[0, 1, 2]]))
    if model.tokenizer is not None:
        model.tokenizer.decode(encode_text(model, "What is this?"))


@cache
def bins() -> list[Files]:
    import llama2c

    def make(place: Path) -> None:
        place.mkdir()
        llama2c.write(place)
        llama2c.write_tokenizer(place)

    return made_by(make)


@cache
def recipes() -> list[Files]:
    return [{"recipe.toml": file.read_bytes()} for file in sorted((ROOT / "recipes").glob("*.toml"))]


def use_recipe(folder: Path, dice: Random) -> None:
    """Read a recipe, and sometimes prepare its model and its first batches, on the small data of the tests."""
    from dataclasses import replace

    from recipes import small
    from telescope.tasks.learning.registry import TASKS, read

    recipe = opened(lambda: read(folder / "recipe.toml"), ValueError)
    read_again = folder / "again.toml"
    read_again.write_text(recipe.to_toml())
    assert replace(read(read_again), name=recipe.name) == recipe
    if dice.random() < 0.1 and recipe.task != "recall":
        recipe = small(recipe)  # its model and its steps; the rest comes from the file
        stage = TASKS[recipe.task].prepare(recipe, data(), None).stages["training"]
        stage.data.batches(stage.settings, 0)


@cache
def data() -> Path:
    import corpora

    return corpora.make(Path(tempfile.mkdtemp(prefix="telescope-mutations-")))


@cache
def sets() -> list[Files]:
    """Return the files of each corpus."""
    whole = contents_of(data())
    names = sorted({name.split("/")[0] for name in whole})
    return [{name: it for name, it in whole.items() if name.split("/")[0] == one} for one in names]


def use_corpus(folder: Path, dice: Random) -> None:
    from telescope.text.corpora import SUMMARIES, TEXTS, TRANSLATIONS

    of = {
        "multi30k": ["multi30k", "multi30k-tokens"],
        "tatoeba_de_en": ["tatoeba"],
        "debian_ddtp_en_de": ["debian-descriptions"],
        "debian_synopsis": ["debian-synopsis"],
        "samsum": ["samsum"],
        "tiny_shakespeare": ["tiny-shakespeare"],
        "wikitext2": ["wikitext2"],
    }
    for there in sorted(os.listdir(folder)):
        for name in of.get(there, ()):
            for split in ("train", "validation", "test"):
                languages = ("en", "de") if name in TRANSLATIONS else ()
                read: Any = (TRANSLATIONS | SUMMARIES | TEXTS)[name]
                opened(lambda read=read, split=split, languages=languages: read(folder, split, *languages), ValueError)


@cache
def own() -> list[Files]:
    """Return data of a user's own: a table of each kind, and a text."""
    rows = [("Two men stand.", "Zwei Männer stehen."), ('She said "hi", twice.', "Sie sagte zweimal hallo.")]
    records = [{"english": english, "german": german} for english, german in rows]
    separated = ["english\tgerman", *("\t".join(row) for row in rows)]
    quoted = ["english,german", *(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows)]
    return [
        {"pairs.tsv": "\n".join(separated).encode()},
        {"pairs.csv": "\r\n".join(quoted).encode()},
        {"pairs.jsonl": "\n".join(map(json.dumps, records)).encode()},
        {"pairs.json": json.dumps(records).encode()},
        {"novel.txt": b"First Citizen:\nBefore we proceed, hear me speak.\n"},
    ]


def use_own(folder: Path, dice: Random) -> None:
    from telescope.text.own_files import column_names, read_rows, read_running_text

    for name in sorted(os.listdir(folder)):
        file = str(folder / name)
        opened(lambda file=file: column_names(folder, file), ValueError)
        if name.startswith("pairs"):
            opened(lambda file=file: read_rows(folder, file, ("english", "german")), ValueError)
        column = "english" if name.startswith("pairs") else None
        opened(lambda file=file, column=column: read_running_text(folder, file, column), ValueError)


@cache
def answers() -> list[Files]:
    """Return what `telescope evaluate --predict` writes."""
    report = {
        "multi30k-tiny": {"source": "a", "prediction": "ein Hund", "references": ["ein Hund läuft", "Hund"]},
        "recall-causal": {"question": "Where?", "answer": "Rome", "places": ["Rome"]},
        "shakespeare-char": {"loss": 1.5, "tokens": 100, "characters": 200},
    }
    lines = {name: 1 if name.startswith("shake") else 3 for name in report}
    return [
        {
            "recipe.toml": (ROOT / "recipes" / f"{name}.toml").read_bytes(),
            "evaluation/test.jsonl": b"\n".join([json.dumps(it).encode()] * lines[name]) + b"\n",
        }
        for name, it in report.items()
    ]


def use_answers(folder: Path, dice: Random) -> None:
    from telescope.tasks.learning.evaluate import score

    opened(lambda: score(folder), ValueError)


KINDS = (
    Kind("recording", 40, recordings, use_recording, without_checksums),
    Kind("model", 12, models, use_model),
    Kind("huggingface", 10, foreign, use_model),
    Kind("llama2.c", 5, bins, use_model),
    Kind("recipe", 12, recipes, use_recipe),
    Kind("corpus", 8, sets, use_corpus),
    Kind("own data", 6, own, use_own),
    Kind("answers", 5, answers, use_answers),
)


def opened(call: Callable[[], Any], *allowed: type[Exception]) -> Any:
    """Return what a file holds. Only the documented error is accepted: a LoadError, or the given alternative."""
    from telescope.models import LoadError

    try:
        return call()
    except Exception as problem:
        if type(problem) not in (LoadError, *allowed):
            raise WrongError(f"{type(problem).__name__}: {problem}") from problem
        raise


# ------------------------------------------------------------------------------------------------------------- running


def prepare() -> None:
    for kind in KINDS:
        kind.made()


def run(dice: Random, folder: Path) -> Done:
    """Corrupt a file of some kind and use it; raise any undocumented error."""
    from telescope.models import LoadError

    (kind,) = dice.choices(KINDS, [it.share for it in KINDS])
    files = kind.before(dice.choice(kind.made()), dice)
    place = folder / "it"
    for name, contents in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(contents)
    corrupt(place, files, dice)
    try:
        kind.use(place, dice)
    except (ValueError, LoadError) as problem:
        if type(problem) not in (ValueError, LoadError):  # not UnicodeError and the like
            raise
        if not str(problem) or "\n" in str(problem) or len(str(problem)) > 2000:
            raise WrongError(f"{type(problem).__name__} of {len(str(problem))} characters: {problem}") from problem
        return Done(kind.name, accepted=False)
    return Done(kind.name)
