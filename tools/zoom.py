"""Film the map of a long text from the whole of it down to one weight: docs/zoom.webp, and its
first frame, docs/zoom.png.

The text is 1,048,576 tokens of WikiText-2, and the map is that of head 3 of the first layer of
SmolLM2-135M. Queries and keys of a first layer follow from the tokens and their positions alone,
so that the other layers need not be run. SmolLM2 was trained on texts of up to 8,192 tokens.

python tools/zoom.py record train.txt.gz run.telescope --device cuda
python tools/zoom.py film run.telescope

`record` computes half a trillion scores for the lse of each query: 16 s on an H200. `--lse FILE`
takes them from a file that it wrote (lse.npy beside the recording). `film` needs Chromium.
"""

import argparse
import gzip
import io
import re
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import telescope as ts
from telescope.lessons import smollm2
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall, KeepOptions

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

TOKENS, HEAD, LAYER = 2**20, 3, "model.layers.0"
ROWS = 4_096  # of the matrix of scores, computed at a time


def record(text: Path, place: Path, device: str, known: Path | None) -> None:
    """Write a recording of the first layer's attention over the first TOKENS tokens of a text."""
    model, tokenizer = smollm2()
    opened = gzip.open(text, "rt", encoding="utf-8") if text.suffix == ".gz" else text.open()
    with opened as file:
        written = file.read(6 * TOKENS)
    ids = torch.tensor(tokenizer(as_written(written))["input_ids"])[:TOKENS]
    if len(ids) < TOKENS:
        raise SystemExit(f"{text} has {len(ids):,} tokens, and {TOKENS:,} are needed")

    queries, keys = queries_and_keys(model, ids)
    if known is not None:
        lse = torch.from_numpy(np.load(known))
    else:
        lse = sums_of_rows(queries.to(device), keys.to(device)).cpu()
        np.save(place.with_name("lse.npy"), lse.numpy())

    recording = Recording(
        "SmolLM2-135M", [LAYER], "queries-keys", KeepOptions(), lambda ids: tokenizer.decode(ids)
    )
    no_values = keys[None, None, :, :1]
    call = AttentionCall(
        queries[None, None],
        keys[None, None],
        no_values,
        ts.Attention(mask=ts.causal),
        (0,),
        0.0,
        query_ids=ids[None],
    )
    recording.record(LAYER, call._replace(lse=lse[None, None]))
    recording.save(place, replace=True)


def as_written(text: str) -> str:
    """Return WikiText-2 without the signs of its own tokens."""
    return re.sub(r" @(.)@ ", r"\1", text).replace("<unk>", "?")


@torch.no_grad()
def queries_and_keys(model: torch.nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the queries and keys of HEAD in the first layer, (token, feature) in bfloat16."""
    decoder = model.model
    layer, config = decoder.layers[0], model.config
    width, shared = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    types, which = ids.unique(return_inverse=True)
    states = layer.input_layernorm(decoder.embed_tokens(types))
    projections = ((layer.self_attn.q_proj, HEAD), (layer.self_attn.k_proj, HEAD // shared))
    angles = torch.arange(len(ids)).float()[:, None] * decoder.rotary_emb.inv_freq
    angles = torch.cat([angles, angles], -1)
    turned = []
    for projection, head in projections:
        part = projection(states)[:, head * width : (head + 1) * width]
        part = part.half().float()[which]  # 16 bits, as the tables were sent to the GPU
        half = torch.cat([-part[:, width // 2 :], part[:, : width // 2]], -1)
        turned.append((part * angles.cos() + half * angles.sin()).bfloat16())
    return turned[0], turned[1]


def sums_of_rows(queries: Tensor, keys: Tensor) -> Tensor:
    """Return ln Σ exp(score) of each query over itself and the keys before it, in float32."""
    below = torch.ones(ROWS, ROWS, dtype=torch.bool, device=queries.device).tril()
    found = []
    for first in range(0, len(queries), ROWS):
        rows = queries[first : first + ROWS].float()
        scores = rows @ keys[: first + ROWS].float().T / rows.shape[-1] ** 0.5
        scores[:, first:] = scores[:, first:].masked_fill(~below, -torch.inf)
        found.append(scores.logsumexp(-1))
    return torch.cat(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("text", type=Path)
    one.add_argument("place", type=Path)
    one.add_argument("--device", default="cpu")
    one.add_argument("--lse", type=Path)
    options = parser.parse_args()
    record(options.text, options.place, options.device, options.lse)
