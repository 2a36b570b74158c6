"""A run of training as a process of its own: python run.py OUT {"steps": 6}. It prints losses, and saves OUT/model."""

import json
import sys
from pathlib import Path

import torch

from telescope import training
from telescope.models import Transformer, TransformerConfig

torch.set_num_threads(1)


def pairs(count=21):
    """Words, and the same backwards."""
    draw = torch.Generator().manual_seed(5)
    lengths = torch.randint(2, 12, (count,), generator=draw).tolist()
    sources = [torch.randint(3, 30, (n,), generator=draw).tolist() for n in lengths]
    return sources, [[1, *reversed(source), 2] for source in sources]


def small(**fields):
    torch.manual_seed(3)
    shape = {"vocabulary": 30, "d_model": 16, "heads": 2, "encoder_blocks": 1, "decoder_blocks": 1, "d_hidden": 32}
    return Transformer(TransformerConfig(**shape, **fields))


def told(event):
    if isinstance(event, training.Logged):
        print(f"step {event.step} loss {event.loss!r}", flush=True)
    if isinstance(event, training.Validated):
        print(f"validated {event.step} {event.metrics['loss']!r}", flush=True)


def main(out, settings, dropout=0.0):
    settings = training.Training(**{"tokens": 96, "lr": 3e-3, "warmup": 3, "clip": 1.0, "log_every": 1} | settings)
    data = training.Examples(*pairs())

    def validate(model):
        return {"loss": training.mean_loss(model, data, training.translation, settings)}

    model = training.train(
        small(dropout=dropout), data, training.translation, settings, Path(out), validate=validate, report=told
    )
    from accelerate import PartialState

    if PartialState().is_main_process:
        model.save(Path(out) / "model")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), *map(float, sys.argv[3:]))
