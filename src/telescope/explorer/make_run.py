"""Make runs: a model reads a sentence, or translates it, keeping every step of every attention; a
worked example has vectors in place of a model, whole words, and cells that can be edited.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from unicodedata import category

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .. import attention as attentions
from ..decoding import Written, start_token
from ..interception import watch
from ..models import GPT, Encoder, Model, Transformer
from ..recording import AttentionCall, KeepOptions, Recording, StepsCall
from ..tasks import (
    EXAMPLES,
    Example,
    ExampleScene,
    SentenceAttention,
    encode_text,
    max_source_tokens,
    source_words,
    translate_whole,
    watch_translation,
    written_words,
)
from ..traces import Trace, Words, shortest_numbers
from .answers import ExampleFacts, ExampleInput, ExampleStep, Refusal, unknown
from .example_names import PREFIX, name_of, parse
from .joined_words import Decode
from .output import Output, StackInputs
from .run import AttentionView, Run

LONGEST_SENTENCE = 4096  # tokens of a typed text; `telescope watch` takes longer ones
# Bytes of a residual stream that a run keeps, to tell who wrote what; a sentence takes one million.
MOST_STREAM = 2**26
LAST_LATIN = 0x24F  # the code of the last Latin letter
# Pieces of a word beyond which a text is hardly what a model has learnt from. English sentences of
# Tatoeba and Multi30k take 1.3 on average in the translator's 11,000 tokens, and fewer than one in
# 100 more than 2.5; Polish, Finnish and Turkish take 4. A small vocabulary cuts every text into
# more.
MOST_PIECES = 2.5
LARGE_VOCABULARY = 8_000
FEW_WORDS = 4  # of fewer, a single rare word decides
# What an example may be computed with, by the name in a request.
NORMALIZERS = {"softmax": attentions.softmax, "by_sum": attentions.by_sum}
LARGEST_NUMBER = 1e6  # in a cell


# ---------------------------------------------------------------------------------------- sentences


def run_name(model: str, text: str, target: str | None) -> str:
    """Return the name of a sentence's run: a hash, so that the same sentence is the same run."""
    # JSON may hold half of a character, which no encoding of a text can.
    for what, given in (("text", text), ("model", model), ("target", target or "")):
        if (half := re.search("[\ud800-\udfff]", given)) is not None:
            message = (
                f"the {what} has {half[0]!r} at {half.start()}, half of a character (a lone "
                "surrogate)"
            )
            raise Refusal(400, "bad-json", message)
    # The separator keeps a text and its target apart, wherever one ends.
    return "s" + sha256("\0".join((model, text, target or "")).encode()).hexdigest()[:12]


def read(model: Model, model_name: str, text: str, target: str | None = None) -> Run:
    """Run a model on a text and return the run; a translator writes `target`, or without it its own
    translation.
    """
    if model.tokenizer is None:
        raise _unreadable(f"{model_name} has no tokenizer, so it cannot read text")
    try:
        with _no_padding_or_truncation(model.tokenizer):
            views, written, output, recording = _attention_views(model, text, target)
    except ValueError as problem:
        raise _unreadable(str(problem)) from None
    # A server keeps many runs: a long text keeps its steps, and not who wrote them.
    stream = None if recording is None else recording._stream
    if stream is not None and stream.nbytes > MOST_STREAM:
        stream.passes.clear()
    name = run_name(model_name, text, target)
    return Run(
        name,
        name,
        "sentence",
        text,
        model_name,
        "steps",
        tuple(views),
        text,
        target,
        written,
        notice=_notice(model, text),
        output=output,
        recording=recording,
    )


Seen = tuple[list[AttentionView], str | None, Output | None, Recording | None]


def _attention_views(model: Model, text: str, target: str | None) -> Seen:
    """Return a view of each attention, the text that was written, the output and the recording;
    ValueError for what cannot be run.
    """
    assert model.tokenizer is not None
    # What cannot be read is refused before a model runs.
    ids = encode_text(model, text)
    if not text.strip() or not ids:
        raise ValueError("the text has no words")
    own_limit = model.longest if isinstance(model, GPT) else max_source_tokens(model)
    most = min(LONGEST_SENTENCE, own_limit)
    if len(ids) > most:
        raise ValueError(f"the text has {len(ids):,} tokens; at most {most:,} can be read at once")
    if isinstance(model, Transformer):
        # A translator writes first, and is then recorded in one pass over what it wrote.
        wrote = translate_whole(model, text) if target is None else _forced(model, target)
        if len(wrote.ids) > most:
            raise ValueError(
                f"the target has {len(wrote.ids):,} tokens; at most {most:,} can be written at once"
            )
        decode = model.tokenizer.decode
        stacks = watch_translation(model, text, wrote)
        # The decoder reads the start token, then all that was written but the last token.
        read = [start_token(model), *wrote.ids[:-1]]
        # What encoder and decoder read; a cross-attention has no inputs of its own.
        sides = (StackInputs.of_text(model, ids), StackInputs.of_text(model, read, "target"), None)
        read_by = zip(stacks, sides, strict=True)
        views = [
            view for stack, inputs in read_by for view in _views_of(stack, model, decode, inputs)
        ]
        output = Output.of_translation(model, ids, wrote.ids, stacks.cross.rows)
        return views, wrote.text, output, stacks.cross.recording
    # Other models write no given target, and not all of them read a text.
    if target is not None:
        raise ValueError(f"a {type(model).__name__} does not write, so it takes no target")
    if not isinstance(model, GPT | Encoder):
        raise ValueError(
            f"a {type(model).__name__} cannot be explored by itself; a Transformer, GPT or Encoder "
            "can"
        )
    # Others read the text in one pass.
    with torch.no_grad(), watch(model, keep="steps", also="norms") as recording:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    # An encoder's words come from the text; a GPT's from what each token adds to it.
    read_words: Words = (
        source_words(model, text) if isinstance(model, Encoder) else written_words(model, ids)
    )
    seen = SentenceAttention(read_words, read_words, tuple(recording.values()))
    views = _views_of(seen, model, model.tokenizer.decode, StackInputs.of_text(model, ids))
    output_of_gpt = Output.of_gpt(model, ids) if isinstance(model, GPT) else None
    return views, None, output_of_gpt, recording


@contextmanager
def _no_padding_or_truncation(tokenizer: Tokenizer) -> Iterator[None]:
    """Switch off the padding and truncation that a tokenizer of Hugging Face may have set, and
    restore them after.
    """
    padding = tokenizer.padding
    truncation = tokenizer.truncation
    # Padding would be recorded as tokens of the text, and truncation would lose some.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        yield
    finally:
        if padding is not None:
            tokenizer.enable_padding(**padding)
        if truncation is not None:
            tokenizer.enable_truncation(**truncation)


def _views_of(
    stack: SentenceAttention, model: Model, decode: Decode, inputs: StackInputs | None
) -> list[AttentionView]:
    """Return a view of each layer of a stack; `inputs` are what its first block reads."""
    modules = dict(model.named_modules())
    return [
        AttentionView(
            layer.name,
            layer.call,
            decode,
            stack.rows,
            stack.columns,
            # "encoder.0.self" is the attention of the block "encoder.0".
            block=modules.get(layer.name.rpartition(".")[0]),
            inputs=inputs,
        )
        for layer in stack.layers
    ]


def _forced(model: Transformer, target: str) -> Written:
    """Return a given target as if the model had written it, with an end token."""
    if not target.strip():
        raise ValueError("the target has no words")
    ids = encode_text(model, target)
    # A tokenizer may add the end token by itself.
    ends = bool(ids) and ids[-1] in model.special.end
    return Written(ids if ends else [*ids, *model.special.end[:1]], target, "end")


def _notice(model: Model, text: str) -> str | None:
    """Return a warning for a text that the model has hardly learnt to read, by what its tokenizer
    makes of it: letters of another script, words that fall apart, symbols without a token.
    """
    letters = sum(character.isalpha() for character in text)
    foreign = sum(character.isalpha() and ord(character) > LAST_LATIN for character in text)
    pieces = len(encode_text(model, text))
    # Mostly foreign letters, and hardly more than one letter in a piece.
    if foreign * 2 > letters and pieces * 5 >= letters * 4:
        return (
            f"This model has hardly read this script: {letters} letters became {pieces} pieces. "
            "What it writes about them, and where it looks, means little."
        )
    unread = _without_token(model, text)
    if unread:
        shown = ", ".join(unread[:5]) + (" and others" if len(unread) > 5 else "")
        return (
            f"This model has no token for {shown}: it reads bytes or “unknown” in place of each, "
            "which tell it nothing."
        )
    words = len(text.split())
    vocabulary = model.tokenizer.get_vocab_size() if model.tokenizer is not None else 0
    if vocabulary >= LARGE_VOCABULARY and words >= FEW_WORDS and pieces > MOST_PIECES * words:
        return (
            f"This model has hardly read such words: {words} of them became {pieces} pieces. They "
            "are rare, or of another language, and what it makes of them may mean little."
        )
    return None


def _without_token(model: Model, text: str) -> list[str]:
    """Return the symbols of a text, each once, that no token stands for; letters are left out: a
    word with one of them is still known by the others.
    """
    assert model.tokenizer is not None
    encoding = model.tokenizer.encode(text)
    read: dict[int, str] = {}
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        for at in range(start, end):
            read[at] = read.get(at, "") + model.tokenizer.decode([token])
    # Categories S and N: emoji, signs of mathematics and currencies, numbers in circles.
    return list(
        dict.fromkeys(
            character
            for at, character in enumerate(text)
            if not character.isascii()
            and category(character)[0] in "SN"
            and character not in read.get(at, "")
        )
    )


def _unreadable(message: str) -> Refusal:
    return Refusal(422, "text", message)


# ---------------------------------------------------------------------------------- worked examples


def example_name(run: str) -> str | None:
    """Return the example that a run such as example-bank~by_sum shows, or None."""
    name = run.removeprefix(PREFIX).partition("~")[0]
    return name if run.startswith(PREFIX) and name in EXAMPLES else None


def example_run(name: str, inputs: object = None, normalize: object = None) -> Run:
    """Return an example as a run, computed in float64 from other numbers where `inputs` are given:
    {"x": [[1.0, 0.0], …]}.

    `name` may hold changes, as in example-bank~x.0.0_1.5; then the others are None. Raises Refusal
    for an unknown example, normaliser or input, and for a cell that is no number.
    """
    asked = PREFIX + name.removeprefix(PREFIX)
    name = name.removeprefix(PREFIX).partition("~")[0]
    if name not in EXAMPLES:
        raise unknown(f'there is no example "{name[:40]}"; there are {", ".join(EXAMPLES)}')
    # A list: JSON may hold what cannot be hashed.
    if normalize is not None and normalize not in list(NORMALIZERS):
        raise _bad(f"normalize must be one of {', '.join(NORMALIZERS)}")
    # The example with its own numbers tells the shapes that other numbers must have.
    original = EXAMPLES[name](NORMALIZERS["softmax"], dtype=torch.float64)
    if "~" in asked:
        inputs, normalize = parse(asked, original.inputs)
    normalizer = NORMALIZERS[str(normalize or "softmax")]
    given = {} if inputs is None else _check_inputs(original, inputs)
    example = EXAMPLES[name](normalizer, given, dtype=torch.float64)
    # Other numbers make another run, whose name holds them; a link keeps the name that it has.
    run = asked if "~" in asked else name_of(name, original.inputs, given, str(normalize))
    views = tuple(_view(at, scene) for at, scene in enumerate(example.scenes))
    if name == "bank":  # one picture for both: the same word moves to two places
        views = tuple(replace(view, beside=views) for view in views)
    facts = _describe(example, normalizer)
    return Run(run, run, "example", example.sentence, name, "steps", views, example=facts)


def run_of_trace(steps: Trace) -> Run:
    """Return a trace as a run of one attention."""
    scene = ExampleScene("Trace", "", steps, steps.query_tokens[0])
    words = " ".join(steps.key_tokens)
    return Run("trace", "trace", "sentence", words[:80], "trace", "steps", (_view(0, scene),))


def _view(number: int, scene: ExampleScene) -> AttentionView:
    """Return a scene as a view: its queries, keys and values, recorded as if a model had computed
    them.
    """
    steps = scene.trace
    name = f"scene.{number}"
    # One query beside several keys is a single row, and not another text.
    across = steps.query_tokens != steps.key_tokens and len(steps.query_tokens) > 1
    recording = Recording("example", [name], StepsCall.keep, KeepOptions())
    heads = tuple(range(steps.queries.shape[1]))
    recording._record(
        name,
        AttentionCall(
            steps.queries, steps.keys, steps.values, steps.attention, heads, 0.0, across=across
        ),
    )
    call = recording[name].call
    # Values and contexts of the only head stand for the stream before and after.
    if scene.moves:
        assert isinstance(call, StepsCall)
        call.add_residual_stream(steps.values[:, 0], steps.context[:, 0])
    rows, columns = (_whole(tokens) for tokens in (steps.query_tokens, steps.key_tokens))
    return AttentionView(name, call, None, rows, columns, title=scene.title)


def _whole(tokens: tuple[str, ...]) -> Words:
    """Return words of one token each."""
    numbers = tuple(range(len(tokens)))
    return Words(names=tokens, word_ids=numbers, pieces=tokens, text_words=numbers)


def _describe(example: Example, normalizer: object) -> ExampleFacts:
    return ExampleFacts(
        name=example.name,
        origin=example.origin,
        normalize=next(name for name, one in NORMALIZERS.items() if one is normalizer),
        inputs=[
            ExampleInput(name, example.input_rows.get(name), shortest_numbers(matrix))
            for name, matrix in example.inputs.items()
        ],
        scenes=[
            ExampleStep(
                title=scene.title,
                caption=scene.caption,
                query=scene.trace.find(scene.query),
                findings=scene.findings,
                inputs=scene.inputs,
            )
            for scene in example.scenes
        ],
    )


def _check_inputs(example: Example, inputs: object) -> dict[str, Tensor]:
    """Return the inputs as matrices of the example's own shapes."""
    if not isinstance(inputs, Mapping):
        raise _bad('inputs must be {"x": [[…], …]}, rows of numbers by name')
    found = {}
    for name, rows in inputs.items():
        if name not in example.inputs:
            raise _bad(
                f'there is no input "{str(name)[:40]}"; there are {", ".join(example.inputs)}'
            )
        # First the shape, then each cell.
        height, width = example.inputs[name].shape
        if (
            not isinstance(rows, list)
            or len(rows) != height
            or any(not isinstance(r, list) or len(r) != width for r in rows)
        ):
            raise _bad(f'"{name}" must be {height} rows of {width} numbers')
        for i, row in enumerate(rows):
            for j, x in enumerate(row):
                # True and False are ints, too.
                number = isinstance(x, int | float) and not isinstance(x, bool)
                # NaN is no smaller; an int may be too large to become a float.
                if not number or not abs(x) <= LARGEST_NUMBER:
                    raise _bad(
                        f'"{name}", row {i}, column {j}: {str(x)[:20]} is not a number from -1e6 '
                        "to 1e6"
                    )
        found[name] = torch.tensor(rows, dtype=torch.float64)
    return found


def _bad(message: str) -> Refusal:
    return Refusal(400, "bad-json", message)
