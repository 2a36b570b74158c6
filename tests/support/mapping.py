"""A tiny model, a tokenizer and a corpus for atlases; and processes that make one: python mapping.py JOBS.

JOBS is JSON, a list of {"out", "world", "kills", "missing"}: for each job, `world` processes make an atlas, all but the
`missing` one, for which the others wait a second. "kills" are seconds: after each, all processes are killed, and then
started again. Printed are the exit codes of the last, their seconds, and how many kills hit unfinished work.
"""

import glob
import json
import os
import random
import signal
import sys
import time

import torch

import telescope as ts
from telescope.atlases import shared_work

LETTERS = "abcdefghijklmnopqrstuvwxyz .,\n"


class Letters:
    """A tokenizer of letters; the letter # breaks it."""

    def encode(self, text):
        if "#" in text:
            raise ValueError("no such letter: #")
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids):
        return "".join(LETTERS[token] for token in ids)


class Fragile(torch.nn.Module):
    """A model that breaks at a token, or computes no number there."""

    def __init__(self, how):
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 8)
        self.attention = ts.layers.MultiHeadAttention(8, 2, attention=ts.Attention(mask=ts.causal))
        self.how = how

    def forward(self, ids):
        x = self.embedding(ids)
        if self.how == "raise" and (ids == 25).any():
            raise RuntimeError("this model has no z\nand more")
        if self.how == "nan":
            x = x + torch.where(ids == 25, torch.nan, 0.0)[..., None]
        return self.attention(x)


def tiny_gpt(seed=0, heads=2, **options):
    torch.manual_seed(seed)
    sizes = {"vocabulary": len(LETTERS), "max_positions": 64, "d_model": 16, "blocks": 2, "heads": heads}
    model = ts.models.GPT(ts.models.GPTConfig(**sizes | options)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def corpus(count=40, seed=1, least=20, most=150):
    """Return texts of random words, which repeat."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(LETTERS[:26], k=draw.randint(1, 6))) for _ in range(30)]
    texts = []
    for _ in range(count):
        text, size = "", draw.randint(least, most)
        while len(text) < size:
            text += draw.choice(words) + draw.choice([" ", " ", ", ", ". "])
        texts.append(text)
    return texts


def make(texts, **options):
    return ts.atlas(tiny_gpt(), texts, tokenizer=Letters(), shard=300, batch=4, **options)


def run(job, rank, world):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    if "missing" in job:
        shared_work.TIMEOUT = shared_work.GRACE = 1.0
    make(corpus(), out=job["out"], save_every=0.0)


def parts(job):
    return {*glob.glob(f"{job['out']}.progress/part-*")}


def start(job, rank, world):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run(job, rank, world)
        code = 0
    except BaseException as problem:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(corpus(2))  # compiles, once for all processes
    for job in json.loads(sys.argv[1]):
        world, hits = job.get("world", 1), 0
        for number, seconds in enumerate(job.get("kills", [])):
            known = parts(job)
            children = [start(job, rank, world) for rank in range(world)]
            while number % 2 and not parts(job) - known and not os.path.exists(job["out"]):
                time.sleep(0.002)  # every second kill comes after a shard is saved
            time.sleep(seconds)
            hits += not os.path.exists(job["out"])
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        began = time.monotonic()
        alive = [rank for rank in range(world) if rank != job.get("missing")]
        children = [start(job, rank, world) for rank in alive]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps({"codes": codes, "seconds": time.monotonic() - began, "hits": hits}), flush=True)
