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
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, sync_playwright
from torch import Tensor

import telescope as ts
from telescope.lessons import smollm2
from telescope.recording import Recording
from telescope.recording.attention_call import AttentionCall, KeepOptions

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.explore import GO, serving  # noqa: E402

TOKENS, HEAD, LAYER = 2**20, 3, "model.layers.0"
ROWS = 4_096  # of the matrix of scores, computed at a time
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
VIEW = {"width": 1180, "height": 1000}
# The cell where the film ends, and the zooms of its first and last frames, in powers of two.
QUERY, KEY = 733_547, 494_692
START, DEEP, STEP = 0.9, 18.4, 0.5
QUALITY = 60  # of WebP
TILE = 256  # pixels of the whole matrix at zoom 0
FONT = font_manager.findfont("DejaVu Sans")
SHOWN = ".quality[data-exact]:not([data-missing])"


def record(text: Path, place: Path, device: str, known: Path | None) -> None:
    """Write a recording of the first layer's attention over the first TOKENS tokens of a text."""
    model, tokenizer = smollm2()
    packed = text.read_bytes()
    written = (gzip.decompress(packed) if text.suffix == ".gz" else packed).decode()[: 6 * TOKENS]
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
    recording._record(LAYER, call._replace(lse=lse[None, None]))
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


def film(place: Path) -> None:
    """Write the film and its first frame."""
    with serving(place) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport=VIEW, color_scheme="dark")
        page.goto(server.link)
        depths = np.arange(START, DEEP + STEP / 2, STEP)
        frames = [frame(page, f"/s/{server.run}/map", depth) for depth in depths]
        browser.close()
    write(frames)


def write(frames: list[Image.Image]) -> None:
    """Write frames as a film, and the first as a picture."""
    first, last = 1_800, 3_500  # milliseconds to read the whole and the one
    lengths = [first, *[160] * (len(frames) - 2), last]
    frames[0].save(DOCS / "zoom.png", optimize=True)
    frames[0].save(
        DOCS / "zoom.webp",
        save_all=True,
        append_images=frames[1:],
        duration=lengths,
        loop=0,
        quality=QUALITY,
        method=6,
    )


def frame(page: Page, path: str, depth: float) -> Image.Image:
    """Return what the map shows at one depth, when every tile has arrived."""
    # The cell moves from its place in the whole matrix to the middle of the picture.
    x, y = (at + 0.5 + (TOKENS / 2 - at) * 2.0 ** (START - depth) for at in (KEY, QUERY))
    page.evaluate(GO, [f"{path}?l=0&h=0&x={x}&y={y}&z={depth}", SHOWN])
    for _ in range(60):  # samples of a long text become finer while nobody moves
        page.wait_for_timeout(100)
        if not page.locator(".quality").filter(has_text="loading").count():
            break
    page.mouse.move(1, 1)
    box = page.locator(".viewer").bounding_box()
    shot = page.screenshot(clip=box)
    print(f"zoom {depth:.2f}", flush=True)
    return captioned(Image.open(io.BytesIO(shot)).convert("RGB"), depth)


def captioned(picture: Image.Image, depth: float) -> Image.Image:
    """Return a frame with what it shows below it."""
    weights = 2.0 ** (np.log2(TOKENS / TILE) - depth)
    size = f"a pixel is {weights:,.0f} × {weights:,.0f} weights"
    if weights < 1.5:
        size = (
            "a pixel is a weight"
            if weights > 0.7
            else f"a weight is {1 / weights:,.0f} pixels wide"
        )
    line = f"head {HEAD} of SmolLM2's first layer, {TOKENS:,} × {TOKENS:,} weights: {size}"
    whole = Image.new("RGB", (picture.width, picture.height + 34), "#16171a")
    whole.paste(picture)
    font = ImageFont.truetype(FONT, 15)
    ImageDraw.Draw(whole).text((16, picture.height + 7), line, fill="#d8dade", font=font)
    return whole


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("text", type=Path)
    one.add_argument("place", type=Path)
    one.add_argument("--device", default="cpu")
    one.add_argument("--lse", type=Path)
    commands.add_parser("film").add_argument("place", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.text, options.place, options.device, options.lse)
    else:
        film(options.place)
