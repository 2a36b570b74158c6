"""Small data and models for the tests of training: words, and the same words backwards."""

import torch

import telescope as ts
from telescope import training
from telescope.models import GPT, GPTConfig, LuongConfig, LuongTranslator, Transformer, TransformerConfig

START, END, WORDS = 1, 2, 20
SMALL = {"vocabulary": WORDS, "d_model": 16, "heads": 2}


def pairs(count=12, seed=5, longest=9):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (count,), generator=draw).tolist()
    sources = [torch.randint(3, WORDS, (n,), generator=draw).tolist() for n in lengths]
    return sources, [[START, *reversed(source), END] for source in sources]


def learned():
    """Return a definition with one tensor that is trained and one that is not."""
    table = torch.nn.Parameter(torch.linspace(-0.2, 0.2, 10).reshape(2, 5))
    return ts.Attention(bias=ts.relative(table), sink=torch.tensor([0.25, -0.5]))


def transformer(attention=ts.Attention(), **fields):
    torch.manual_seed(3)
    shape = {"encoder_blocks": 1, "decoder_blocks": 1, "d_hidden": 32, "dropout": 0.0}
    return Transformer(TransformerConfig(**SMALL | shape | fields), attention=attention)


def gpt(**fields):
    torch.manual_seed(3)
    return GPT(GPTConfig(**SMALL | {"blocks": 1, "max_positions": 32} | fields))


def luong(**fields):
    torch.manual_seed(3)
    shape = {"vocabulary": WORDS, "d_embedding": 16, "d_model": 16, "layers": 1, "dropout": 0.0}
    return LuongTranslator(LuongConfig(**shape | fields))


def learn(model, data, out, *, on_event=None, better="lowest loss", validate=None, **settings):
    """Return the trained model, and the events that were reported."""
    events = []

    def report(event):
        events.append(event)
        if on_event is not None:
            on_event(event)

    objective = training.language if isinstance(model, GPT) else training.translation
    said = training.Training(**{"steps": 8, "tokens": 64, "lr": 3e-3, "log_every": 1} | settings)
    trained = training.train(model, data, objective, said, out, validate=validate, better=better, report=report)
    return trained, events


def losses(events):
    return {event.step: event.loss for event in events if isinstance(event, training.Logged)}
