"""Files as version 0.1 wrote them, which later versions must open.

Run `python tests/support/saved_files.py tests/golden/saved/0.1` to write them.

The files of a released version are never written anew. When a format changes, add a folder for the new version.
"""

import json
import sys
import warnings
from pathlib import Path

import torch

import telescope as ts
from support import mapping, writers
from telescope.decoding import generate

TEXT = "the cat saw the dog, and the cat ran."
IDS = torch.tensor([[4, 9, 2, 17, 4, 9, 2, 5]])


def save_all(folder):
    """Save a model of each kind, a recording of each kind, and an atlas."""
    folder.mkdir(parents=True)
    translator = writers.translator(d_model=8, encoder_blocks=1, decoder_blocks=1, heads=2, max_positions=16)
    gpt = mapping.tiny_gpt(d_model=8, max_positions=48)
    writers.gpt(d_model=8, blocks=1, heads=2).save(folder / "gpt")
    translator.save(folder / "translator")
    rotary = {"positions": "rotary", "key_heads": 1, "norm": "rms", "gated": True, "window": 4}
    writers.gpt(d_model=8, blocks=1, heads=2, **rotary).save(folder / "rotary-gpt")

    letters = mapping.Letters()
    ids = torch.tensor([letters.encode(TEXT)])
    options = {
        "summaries": {"keep": "summaries", "top": 3, "map": (4, 4), "also": ("norms", "streaming")},
        "queries-keys": {"keep": "queries-keys", "also": "norms"},
        "steps": {"keep": "steps"},
    }
    for name, chosen in options.items():
        with torch.no_grad(), ts.watch(gpt, tokenizer=letters, **chosen) as recording:
            gpt(ids)
        recording.save(folder / f"recording-{name}")
    with torch.no_grad(), ts.watch(translator, keep="queries-keys") as recording:
        generate(translator, ["Good morning"], max_new_tokens=4, temperature=0.0)
    recording.save(folder / "recording-generation")
    with ts.edit(gpt, ts.mute("blocks.0.self", heads=[1])), torch.no_grad(), ts.watch(gpt) as recording:
        gpt(ids)
    recording.save(folder / "recording-edited")
    ts.atlas(gpt, mapping.corpus(6, most=40), tokenizer=letters, out=folder / "atlas")


def figures(folder):
    """Return numbers read from the files, by name."""
    found = {}
    for name in ("gpt", "rotary-gpt"):
        with torch.no_grad():
            found[name] = ts.load(folder / name)(IDS).double().sum(-2).flatten().tolist()
    with torch.no_grad():
        found["translator"] = ts.load(folder / "translator")(IDS, IDS[:, :4]).double().sum(-2).flatten().tolist()
    for path in sorted(folder.glob("recording-*")):
        recording = ts.open(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a recording of summaries lacks what some columns need
            found[path.name] = {
                "heads": recording.heads().to_dict(),
                "received": {name: watched.received.double().flatten().tolist() for name, watched in recording.items()},
                "edits": [str(edit) for edit in recording.edits],
            }
    atlas = ts.open(folder / "atlas")
    found["atlas"] = json.loads(atlas.table().to_json(orient="records"))
    return found


if __name__ == "__main__":
    out = Path(sys.argv[1])
    save_all(out)
    (out / "figures.json").write_text(json.dumps(figures(out)))
