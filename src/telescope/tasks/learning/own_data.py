"""The fields of a [data] table that name a corpus, or a user's own files."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...layers import check_choice
from ...models import Config
from ...text.corpora import TextPair, group_targets
from ...text.corpus_files import Split
from ...text.own_files import read_rows, read_running_text, split_of


@dataclass(frozen=True)
class OwnData(Config):
    """A corpus by its name, or files of the user's own: one of `corpus` and `train` is given.

    Without a file for validation, `held_out` % of the training data are held out, by a hash of the
    source. Without a file for the test, the test is the validation.
    """

    corpus: str | None = None
    train: str | None = None  # a file; see telescope.text.own_files
    validation: str | None = None
    test: str | None = None
    held_out: int = 5  # %

    def check_source(self, corpora: Mapping[str, Any]) -> None:
        """Raise a ValueError unless one of `corpus` and `train` is given, and the corpus is
        known.
        """
        if (self.corpus is None) == (self.train is None):
            given = "both are given" if self.train is not None else "neither is given"
            raise ValueError(
                f"give one of corpus, which is {', '.join(corpora)}, or train, a file of yours; "
                f"{given}"
            )
        if self.corpus is not None:
            check_choice("corpus", self.corpus, corpora)
            for name in ("validation", "test"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f'{name}="{getattr(self, name)}" goes with train, not with '
                        f'corpus="{self.corpus}"'
                    )
        if not 1 <= self.held_out <= 50:
            raise ValueError(
                f"held_out={self.held_out} % of the data cannot be held out; 1 to 50 can be"
            )

    def file_of(self, split: Split) -> tuple[str, bool]:
        """Return the file of a split, and whether it is the training file, of which a part is held
        out.
        """
        assert self.train is not None
        named = {
            "train": self.train,
            "validation": self.validation,
            "test": self.test or self.validation,
        }[split]
        return named or self.train, self.validation is None and (split == "train" or named is None)

    def read_pairs(
        self,
        data: Path,
        split: Split,
        source: str,
        target: str,
        left_out: Counter[str] | None = None,
    ) -> list[TextPair]:
        """Return the pairs of a split, each source once with all its targets.

        left_out  counts the rows that are left out, by the reason; those of a file with two splits
        count as training
        """
        file, shared = self.file_of(split)
        counted = None if shared and split != "train" else left_out
        rows = read_rows(data, file, (source, target), counted)
        if shared:
            wanted = "train" if split == "train" else "validation"
            rows = [row for row in rows if split_of(row[0], self.held_out) == wanted]
            if not rows:
                raise ValueError(
                    f"{file} has too few rows to hold out {self.held_out} % of them; name a file "
                    "by validation"
                )
        return group_targets([(text, other) for text, other in rows])

    def read_whole_text(
        self, data: Path, split: Split, column: str | None, left_out: Counter[str] | None = None
    ) -> str:
        """Return the running text of a split; held out is the end of the training text. `left_out`
        as above.
        """
        file, shared = self.file_of(split)
        counted = None if shared and split != "train" else left_out
        text = read_running_text(data, file, column, counted)
        if not shared:
            return text
        cut = len(text) - len(text) * self.held_out // 100
        return text[:cut] if split == "train" else text[cut:]
