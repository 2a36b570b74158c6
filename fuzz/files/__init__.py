"""Files of every kind that Telescope reads, corrupted at random: each must open, or be refused in
one sentence.

A file is taken from what Telescope itself writes, or from the data of the tests, and changed in its
structure (a value of another type, a field that is missing, duplicated or misspelt, numbers out of
range, nesting, strange characters; wrong descriptions of tensors) or in its bytes (flipped,
truncated, swapped, replaced by a folder, a link or a pipe). It is then opened and used as a user
would, mostly after its checksums were made right again. Files of some kinds are made hostile too:
sizes that no memory holds, tokenizers that never end.

    changes    to a file of any content: its structure, by the ending of its name, and its bytes
    hostile    changes that make a config, a tokenizer or a table hostile
    corrupt    change one or two files of a folder
    kinds      valid files of every kind
    checksums  make those of a changed file right again
    use        open the files, and read everything in them

A failure is any exception but the documented one, a message of several lines, more than five
seconds or two gigabytes, or the end of the process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ..supervisor import Done, WrongError
from . import checksums, kinds, use
from .changes import Files
from .corrupt import corrupt

UNIT = "files"
SECONDS = 5.0  # that one file may take of a core
HUNG = 60.0  # seconds by the clock, on a machine that has other things to do
BYTES = 2 << 30
STRIDE = 2000  # files of one worker, whose preparation takes as long as some hundred files


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    made    returns valid ones
    use     opens a folder and reads everything in it
    before  changes the valid files before one of them is corrupted
    after   changes the corrupted folder: its checksums are made right again, since whoever writes a
            file can do that
    """

    name: str
    share: int
    made: Callable[[], list[Files]]
    use: Callable[[Path, Random], object]
    before: Callable[[Files, Random], Files] = lambda files, dice: files
    after: Callable[[Path], object] = lambda folder: None


KINDS = (
    Kind(
        "recording",
        30,
        kinds.recordings,
        use.use_recording,
        checksums.left_out,
        checksums.mend_recording,
    ),
    Kind("atlas", 10, kinds.atlases, use.use_atlas, after=checksums.mend_atlas),
    Kind("unfinished atlas", 3, kinds.unfinished, use.use_unfinished),
    Kind("texts", 8, kinds.texts, use.use_texts),
    Kind("model", 12, kinds.models, use.use_model),
    Kind("huggingface", 10, kinds.foreign, use.use_model),
    Kind("tokenizer", 10, kinds.tokenizers, use.use_tokenizer),
    Kind("llama2.c", 4, kinds.bins, use.use_model),
    Kind("checkpoint", 4, kinds.checkpoints, use.use_checkpoint),
    Kind("recipe", 10, kinds.recipes, use.use_recipe),
    Kind("corpus", 6, kinds.sets, use.use_corpus),
    Kind("own data", 8, kinds.own, use.use_own),
    Kind("answers", 4, kinds.answers, use.use_answers),
)
MENDED = 0.8  # how often checksums are made right again


def prepare() -> None:
    for kind in KINDS:
        kind.made()


def run(dice: Random, folder: Path) -> Done:
    """Corrupt a file of some kind and use it; raise any undocumented error."""
    from telescope.files import PanicError
    from telescope.files.errors import WriteError
    from telescope.models import LoadError
    from telescope.training import TrainingError

    documented = (ValueError, LoadError, WriteError, PanicError, TrainingError)
    (kind,) = dice.choices(KINDS, [it.share for it in KINDS])
    files = kind.before(dice.choice(kind.made()), dice)
    place = folder / "it"
    for name, contents in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(contents)
    corrupt(place, files, dice)
    if dice.random() < MENDED:
        kind.after(place)
    try:
        kind.use(place, dice)
    except documented as problem:
        if type(problem) not in documented:  # not UnicodeError and the like
            raise
        if not str(problem) or "\n" in str(problem) or len(str(problem)) > 2000:
            raise WrongError(
                f"{type(problem).__name__} of {len(str(problem))} characters: {problem}"
            ) from problem
        return Done(kind.name, accepted=False)
    return Done(kind.name)
