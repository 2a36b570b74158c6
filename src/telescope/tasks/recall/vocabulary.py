"""The characters of the task: 0 fills up, 1 stands for what was taken out, then those of the text, in their order."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from ...models import Special

PAD, MASK = "□", "⁇"
SPECIAL = Special(end=(1,), pad=0)  # an answer ends where the next ⁇ stands


def tokenizer(text: str) -> Tokenizer:
    """One id for every character of the text; those of the 2,937 lines are 254, so that there are 256."""
    characters = sorted(set(text))
    strange = [character for character in (PAD, MASK) if character in characters]
    if strange:
        raise ValueError(f"the text has a {strange[0]}, which must stand for nothing but itself; take it out")
    ids = {character: i for i, character in enumerate([PAD, MASK, *characters])}
    made = Tokenizer(models.WordLevel(ids))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens([PAD, MASK])
    return made


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """The ids of each text; a character that was not in the first one has none."""
    known = tokenizer.get_vocab()
    for text in texts:
        strange = sorted(set(text) - known.keys())
        if strange:
            raise ValueError(f'"{text}" has a {strange[0]}, which is not among the {len(known)} characters it knows')
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]
