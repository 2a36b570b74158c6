"""What a recording may lack, in the sentences that the page shows."""

from collections.abc import Iterable

from ..recording import RecordedCall

STEPS = 'telescope watch --keep steps, or ts.watch(keep="steps"), keeps them'
SUMMARY = (
    "this recording kept summaries alone, and this screen shows every step of a query: "
    'telescope watch --keep {0}, or ts.watch(keep="{0}"), keeps what it needs'
)
NO_VECTORS = (
    "this needs the vectors before and after attention, which were not kept: "
    f"{STEPS} of Telescope's models"
)
NO_MOVE = (
    "here the context is no new vector of a word that could be drawn as a move: in the examples "
    "journey and bank it is"
)
NO_TEXTS = (
    "The tokens are shown as numbers: this recording has no texts of them. "
    "ts.watch(model, tokenizer=tokenizer) keeps their texts, ts.watch(model, tokens=[...]) names "
    "of your own."
)
READS_ALL = (
    "this model reads a whole text at once and writes none, so that there is no answer whose "
    "sources could be shown: open a translation, a summary or the text of a GPT"
)


def without_texts(calls: Iterable[RecordedCall], *, decodes: bool) -> str | None:
    """Return what a reader should know of a recording whose tokens have neither texts nor names, or
    None.
    """
    unnamed = [
        call
        for call in calls
        if call._all_names("key") is None and (call.key_ids is None or not decodes)
    ]
    # Where some attentions have texts, the others are patches, frames or memories.
    return NO_TEXTS if unnamed and len(unnamed) == len(list(calls)) else None
