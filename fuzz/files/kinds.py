"""Valid files of every kind that Telescope reads: what it writes itself, and the data of the
tests.
"""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ..supervisor import ROOT
from .changes import Files, dumped


def contents_of(folder: Path) -> Files:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


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
    from support.exploring import recorded
    from support.watching import Museum, Translator, filled, sequence

    torch.manual_seed(0)
    ids = torch.tensor([[0, 0, 0, 1, 1]])
    masks = (
        (ts.causal & ts.window(3)) | ts.prefix(1),
        ~ts.documents(ids) & ts.padding(keep=torch.tensor([[True] * 4 + [False]])),
        ts.padding([4]) & ts.from_tensor(torch.rand(1, 2, 5, 5) > 0.3),
        ts.padding(left=[1]) & ts.causal,
    )
    biases = (
        ts.alibi(2),
        ts.relative(torch.randn(2, 5)),
        ts.from_additive(torch.randn(5, 5)),
        None,
    )

    def watched(keep: str, make: Callable[[], Any], **options: Any) -> Callable[[Path], object]:
        def save(place: Path) -> None:
            model = filled(make(), torch.float32)
            with ts.watch(model, keep=keep, **options) as recording, torch.no_grad():
                model(sequence(5).float(), sequence(4, seed=1).float())
            recording.save(place)

        return save

    def of(mask: Any, bias: Any, **options: Any) -> Callable[[Path], object]:
        attention = ts.Attention(
            mask=mask, bias=bias, softcap=3.0 if bias is None else None, sink=0.5
        )
        return recorded(5, d=4, attention=attention, tokens=["a", ".", "the"], **options).save

    return made_by(
        watched("summaries", Translator, map=(2, 2), layers="encoder.*"),
        watched("queries-keys", Translator, heads=[1, 0], queries=[0, -1], layers="decoder.*"),
        watched("steps", Translator, layers="decoder.0.*"),
        watched("steps", Museum, layers=["many", "synthetic", "general", "concat"]),
        watched("queries-keys", Museum, layers=["many", "concat"], heads=[0]),
        *(
            of(mask, bias, keep=keep)
            for mask, bias in zip(masks, biases, strict=True)
            for keep in KEEPS
        ),
    )


KEEPS = ("summaries", "queries-keys", "steps")


@cache
def atlases() -> list[Files]:
    from support import mapping

    return made_by(
        lambda place: mapping.make(mapping.corpus(3), out=place),
        lambda place: mapping.make(mapping.corpus(3)[:1], out=place, layers="blocks.1.self"),
    )


def resume(out: Path) -> Any:
    """Make the atlas of which `unfinished` returns the files."""
    from support import mapping

    return mapping.make(mapping.corpus(2), out=out)


@cache
def unfinished() -> list[Files]:
    """Return what a run leaves that was killed before its end."""
    from unittest.mock import patch

    from telescope.atlases.shared_work import Progress

    def make(place: Path) -> None:
        place.mkdir()
        with patch.object(Progress, "merged", side_effect=InterruptedError):
            try:
                resume(place / "out")
            except InterruptedError:
                return

    return made_by(make)


@cache
def texts() -> list[Files]:
    """Return the kinds of texts that an atlas reads."""
    import pyarrow
    from pyarrow import parquet

    lines = [f"Text {i}, which has some words: {'word ' * (i % 7)}" for i in range(300)]
    packed = []
    for options in (
        {},
        {"compression": "gzip", "use_dictionary": False},
        {"compression": "none", "row_group_size": 100},
    ):
        written = pyarrow.BufferOutputStream()
        parquet.write_table(
            pyarrow.table({"text": lines, "number": list(range(300))}), written, **options
        )
        packed.append(bytes(written.getvalue()))
    records = "".join(json.dumps({"text": line}) + "\n" for line in lines[:20])
    return [
        *({"a.parquet": contents} for contents in packed),
        {"a.txt": "\n".join(lines[:20]).encode()},
        {"a.jsonl": records.encode(), "b.parquet": packed[1]},
    ]


@cache
def models() -> list[Files]:
    import torch

    import telescope as ts
    from support import writers
    from telescope.models import GPT, Encoder, EncoderConfig, GPTConfig

    config = GPTConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2)
    own = ts.Attention(
        mask=ts.causal & ts.window(3),
        bias=ts.relative(torch.nn.Parameter(torch.randn(2, 5))),
        sink=0.5,
    )
    encoder = writers.diced(
        Encoder(EncoderConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2))
    )
    makers = (
        writers.gpt(max_positions=16, blocks=1),
        writers.gpt(
            max_positions=16,
            blocks=1,
            positions="rotary",
            key_heads=2,
            norm="rms",
            gated=True,
            window=4,
        ),
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
    from support import writers
    from telescope.models import Encoder, EncoderConfig

    gpt = {"max_positions": 16, "blocks": 1}
    llama = {
        "positions": "rotary",
        "norm": "rms",
        "gated": True,
        "activation": "silu",
        "bias": False,
        "key_heads": 2,
    }
    bert = EncoderConfig(vocabulary=11, max_positions=8, d_model=8, blocks=1, heads=2)
    exported = (writers.gpt(**gpt), writers.gpt(**gpt, **llama), writers.diced(Encoder(bert)))
    found: list[Files] = []
    for model in exported:
        try:
            found += made_by(lambda place, model=model: ts.export(model, place))
        except ValueError:  # of another shape than the family has
            continue
    assert len(found) > 1

    # A model in two files with an index, and one with the pooling of sentence-transformers.
    first, *_, last = found
    return [
        *found,
        sharded(first),
        last | {"1_Pooling/config.json": b'{"pooling_mode_cls_token": true}'},
    ]


def sharded(files: Files) -> Files:
    """Return the files of a model with its tensors in two shards and an index."""
    from safetensors.torch import load, save

    tensors = sorted(load(files["model.safetensors"]).items())
    half = len(tensors) // 2
    shards = {
        "model-1.safetensors": dict(tensors[:half]),
        "model-2.safetensors": dict(tensors[half:]),
    }
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    rest = {name: contents for name, contents in files.items() if name != "model.safetensors"}
    rest["generation_config.json"] = b'{"eos_token_id": [1, 2], "pad_token_id": 0}'
    return (
        rest
        | {file: save(part) for file, part in shards.items()}
        | {"model.safetensors.index.json": dumped(index)}
    )


@cache
def tokenizers() -> list[Files]:
    """Return tokenizers of each model: BPE, WordPiece, Unigram, words; and one that ships."""
    words = {"type": "WordLevel", "vocab": {"a": 0, "What": 1, "<unk>": 2}, "unk_token": "<unk>"}
    pieces = [["<unk>", 0.0], ["a", -1.0], ["W", -2.0], [" ", -2.5]]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    whole |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    models = [
        words,
        {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        words
        | {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        {"type": "BPE", "vocab": {"a": 0, "W": 1, "aa": 2}, "merges": [["a", "a"]]},
    ]
    shipped = ROOT / "src" / "telescope" / "models" / "shipped" / "shakespeare" / "tokenizer.json"
    return [{"tokenizer.json": dumped(whole | {"model": model})} for model in models] + [
        {"tokenizer.json": shipped.read_bytes()}
    ]


@cache
def bins() -> list[Files]:
    from support import llama2c

    def make(place: Path) -> None:
        place.mkdir()
        llama2c.write(place)
        llama2c.write_tokenizer(place)

    return made_by(make)


def train(out: Path, on_event: Callable[[Any], None] | None = None) -> Any:
    """Train a tiny model for two steps, or go on from the checkpoint in `out`."""
    from support import learning
    from telescope.training import Windows

    data = Windows([3, 4, 5, 6, 7] * 10, block=8)
    return learning.learn(
        learning.gpt(), data, out, on_event=on_event, steps=2, save_every=1, average=2
    )


@cache
def checkpoints() -> list[Files]:
    """Return what a training leaves that was stopped after its first step."""
    from telescope.training import Saved

    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise InterruptedError

    def make(place: Path) -> None:
        try:
            train(place, stop)
        except InterruptedError:
            return

    return made_by(make)


@cache
def recipes() -> list[Files]:
    return [
        {"recipe.toml": file.read_bytes()} for file in sorted((ROOT / "recipes").glob("*.toml"))
    ]


@cache
def data() -> Path:
    from support import corpora

    return corpora.make(Path(tempfile.mkdtemp(prefix="telescope-mutations-")))


@cache
def sets() -> list[Files]:
    """Return the files of each corpus."""
    whole = contents_of(data())
    names = sorted({name.split("/")[0] for name in whole})
    return [{name: it for name, it in whole.items() if name.split("/")[0] == one} for one in names]


@cache
def own() -> list[Files]:
    """Return data of a user's own: a table of each kind, and a text."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        ("Two men stand.", "Zwei Männer stehen."),
        ('She said "hi", twice.', "Sie sagte zweimal hallo."),
    ]
    records = [{"english": english, "german": german} for english, german in rows]
    separated = ["english\tgerman", *("\t".join(row) for row in rows)]
    quoted = [
        "english,german",
        *(",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows),
    ]
    written = pyarrow.BufferOutputStream()
    columns = {"english": [row[0] for row in rows] * 50, "german": [row[1] for row in rows] * 50}
    parquet.write_table(pyarrow.table(columns), written)
    return [
        {"pairs.parquet": bytes(written.getvalue())},
        {"pairs.tsv": "\n".join(separated).encode()},
        {"pairs.csv": "\r\n".join(quoted).encode()},
        {"pairs.jsonl": "\n".join(map(json.dumps, records)).encode()},
        {"pairs.json": json.dumps(records).encode()},
        {"novel.txt": b"First Citizen:\nBefore we proceed, hear me speak.\n"},
    ]


@cache
def answers() -> list[Files]:
    """Return what `telescope evaluate --predict` writes."""
    report = {
        "multi30k-tiny": {
            "source": "a",
            "prediction": "ein Hund",
            "references": ["ein Hund läuft", "Hund"],
        },
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
