"""Small models that read and write text: with random weights, and a translator that has learnt a few sentences by
heart."""

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn

import telescope as ts
from telescope.models import GPT, GPTConfig, LuongConfig, LuongTranslator, Special, Transformer, TransformerConfig

NOTES = "The man saw the astronomer with a telescope"
PAIRS = {
    NOTES: "Der Mann sah den Astronomen mit einem Fernrohr",
    "Good morning.": "Guten Morgen.",
    "How are you?": "Wie geht es dir?",
    "Mr. Smith is here.": "Herr Schmitz ist hier.",
    "I am tired.": "Ich bin müde.",
}
PAD, START, END = 0, 1, 2


def byte_level():
    """Return a tokenizer of byte pieces, with </s> after every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for pair in PAIRS.items() for text in pair], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return tokenizer


def of_characters():
    """Return a tokenizer with one token for each character of Shakespeare, and no special tokens."""
    alphabet = "\n !',-.:;?" + "".join(map(chr, [*range(65, 91), *range(97, 123)]))
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def diced(model, seed=5):
    dice = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=dice)
    return model.eval()


def translator(**changes):
    tokenizer = byte_level()
    sizes = {"d_model": 16, "encoder_blocks": 2, "decoder_blocks": 2, "heads": 4, "max_positions": 48}
    model = diced(Transformer(TransformerConfig(vocabulary=tokenizer.get_vocab_size(), **(sizes | changes))))
    model.tokenizer, model.special = tokenizer, Special(START, (END,), PAD)
    return model


def luong():
    tokenizer = byte_level()
    model = diced(LuongTranslator(LuongConfig(tokenizer.get_vocab_size(), d_embedding=8, d_model=16)))
    model.tokenizer, model.special = tokenizer, Special(START, (END,), PAD)
    return model


def gpt(**changes):
    tokenizer = of_characters()
    sizes = {"d_model": 16, "blocks": 2, "heads": 4, "max_positions": 24}
    model = diced(GPT(GPTConfig(vocabulary=tokenizer.get_vocab_size(), **(sizes | changes))))
    model.tokenizer = tokenizer
    return model


@cache
def learnt():
    """Return the translator after a second of training: it knows PAIRS, and nothing else."""
    torch.manual_seed(0)
    model = translator(d_model=32, encoder_blocks=1, pre_norm=True, dropout=0.0)
    model._initialise()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    source, target = (
        [encoded.ids for encoded in model.tokenizer.encode_batch(list(texts))] for texts in (PAIRS, PAIRS.values())
    )
    begun = [[START, *ids[:-1]] for ids in target]
    mask = ts.padding([len(ids) for ids in source])
    for _ in range(60):
        loss = model.loss(_padded(source, PAD), _padded(begun, PAD), _padded(target, -100), mask)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def _padded(rows, filling):
    longest = max(map(len, rows))
    return torch.tensor([row + [filling] * (longest - len(row)) for row in rows])


# Every model that writes, with random weights.
WORDS = 41
LLAMA = {"positions": "rotary", "norm": "rms", "gated": True, "activation": "silu", "bias": False, "key_heads": 2}
GPTS = {"learned": {}, "llama": LLAMA, "window": {"window": 4}, "synthesizer": {"attention": "synthesizer"}}
KINDS = [*GPTS, "transformer", "luong"]


def made(kind="llama", end=(1, 2, 3), seed=5, positions=48):
    """Return a model of a kind in float64. It is training still: decoding drops nothing all the same."""
    if kind == "transformer":
        config = TransformerConfig(vocabulary=WORDS, d_model=16, encoder_blocks=2, decoder_blocks=2, heads=4)
        model = Transformer(config)
    elif kind == "luong":
        model = LuongTranslator(LuongConfig(vocabulary=WORDS, d_embedding=8, d_model=16, bidirectional=True))
    else:
        sizes = {"vocabulary": WORDS, "max_positions": positions, "d_model": 16, "blocks": 2, "heads": 4}
        model = GPT(GPTConfig(**sizes, dropout=0.5, **GPTS[kind]))
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4, generator=random)
    model.special = Special(start=0, end=end, pad=0)
    return model.double()


def prompts(lengths=(5, 9, 1, 5, 2), seed=3):
    """Return texts of these lengths for the models that `made` returns."""
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(4, WORDS, (n,), generator=random).tolist() for n in lengths]
