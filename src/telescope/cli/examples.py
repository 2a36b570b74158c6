"""The examples that `--help` of each command ends with."""


def _examples(*lines: str) -> str:
    """Return the examples as an epilog; \\b keeps their line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  telescope {line}" for line in lines)


EXAMPLES = {
    "explain": _examples(
        'explain "The man saw the astronomer with a telescope"',
        'explain "Good morning." --open',
        "explain --example journey --query starts",
        'explain "Good morning." --json > steps.json',
    ),
    "translate": _examples(
        'translate "Where is the train station?"',
        'translate "Good morning." "How are you?" --show',
        "translate letter.txt --beams 5 --n-best 3",
        "translate letter.txt --model runs/mine",
    ),
    "summarize": _examples("summarize description.txt", "summarize *.txt --json"),
    "generate": _examples(
        'generate "ROMEO:"',
        'generate "ROMEO:" --temperature 0.5 --seed 7 --max-new-tokens 100',
        "generate prompt.txt --model runs/mine",
    ),
    "recall": _examples('recall "Khatchig Mouradian" --model runs/recall-rotary'),
    "train": _examples(
        "train mine.toml --check",
        "train mine.toml --out runs/mine",
        "train mine.toml --out runs/mine --steps 200 --watch 50",
    ),
    "evaluate": _examples(
        "evaluate runs/mine",
        "evaluate runs/mine --split validation --json",
        "evaluate runs/seed-0 runs/seed-1 runs/seed-2",
    ),
    "watch": _examples(
        "watch --model shakespeare --text play.txt",
        "watch --model DIR --text book.txt --tokens 4096 --keep queries-keys --out run.telescope",
    ),
    "atlas": _examples(
        "atlas --model shakespeare --texts play.txt --out atlas",
        "atlas --model DIR --texts corpus/ --out atlas --device cuda --dtype bfloat16",
    ),
    "compare": _examples(
        "compare atlas-of-step-1000 atlas-of-step-2000", "compare before after --json"
    ),
    "serve": _examples(
        "serve --open", "serve run.telescope --open", "serve --model runs/mine --port 8000"
    ),
    "doctor": _examples("doctor", "doctor --all --json"),
    "new recipe": _examples(
        "new recipe translate mine.toml --train pairs.tsv",
        "new recipe translate mine.toml --train train.{} --source en --target de",
        "new recipe summarize mine.toml --train mails.csv --source body --target subject",
        "new recipe generate mine.toml --train novel.txt",
    ),
}
