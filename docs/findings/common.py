"""What the scripts of this section share: files of packages, models, figures and numbers."""

import json
import os
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch

HERE = Path(__file__).parent
# The packages of files.txt, as `make findings` downloads them, and what was unpacked from them.
FILES = Path(os.environ.get("FINDINGS_FILES", ".venv/findings/files"))
# The colours of every figure: one for what a page is about, one for its control.
INK, ACCENT, LIGHT, WARM = "#1f3a5f", "#2a78b5", "#c8d4e3", "#c8553d"
GREY = "#5b6472"  # of text and axes


def unpack(package: str, name: str) -> Path:
    """Return the path of a file of a downloaded package, of which nothing is installed.

    package  its name and version, such as "brotli-1.2.1"
    name     the path of the file in the package
    """
    target = FILES / "unpacked" / Path(name).name
    if target.exists():
        return target
    found = sorted(FILES.glob(f"{package}*"))
    if not found:
        raise FileNotFoundError(f"there is no {package} in {FILES}; make findings downloads it")
    target.parent.mkdir(parents=True, exist_ok=True)
    if found[0].suffix == ".whl":
        with ZipFile(found[0]) as archive:
            content = archive.read(name)
    else:
        with tarfile.open(found[0]) as archive:
            member = archive.extractfile(f"{package}/{name}")
            assert member is not None, name
            content = member.read()
    target.write_bytes(content)
    return target


def book(name: str) -> str:
    """Return one of four texts of the Canterbury corpus, which the package brotli has as tests.

    alice29   Alice's Adventures in Wonderland         lcet10    a workshop on electronic texts
    asyoulik  As You Like It, by Shakespeare           plrabn12  Paradise Lost
    """
    path = unpack("brotli-1.2.1", f"tests/testdata/{name}.txt")
    lines = path.read_text(encoding="latin-1").splitlines()
    # Indented lines of a scan: one space stands for each gap.
    return "\n".join(" ".join(line.split()) for line in lines)


BOOKS = ("alice29", "asyoulik", "lcet10", "plrabn12")


def device() -> torch.device:
    """Return the GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def smollm2() -> tuple[Any, Any]:
    """Return SmolLM2-135M in float32 on the device, and its tokenizer."""
    from telescope.lessons import smollm2 as load

    model, tokenizer = load()
    model.requires_grad_(False)
    return model.to(device()), tokenizer


def windows(tokenizer: Any, name: str, count: int, length: int) -> torch.Tensor:
    """Return stretches of a book, spread evenly over it: (count, length)."""
    ids = torch.tensor(tokenizer(book(name))["input_ids"])
    # Leave out the title page.
    starts = torch.linspace(1_000, len(ids) - length - 1, count).long()
    return torch.stack([ids[start : start + length] for start in starts])


def column(recording: Any, name: str) -> torch.Tensor:
    """Return a column of recording.heads(), which lists the telling heads first, by place:
    (layers, heads).
    """
    heads = recording.heads()
    layers = {layer: row for row, layer in enumerate(recording)}
    found = torch.empty(len(layers), len(heads) // len(layers))
    for head in heads:
        found[layers[head.layer], head.number] = getattr(head, name)
    return found


def labels_from(ids: torch.Tensor, start: int) -> torch.Tensor:
    """Return labels for the losses of the tokens from `start` on, as `ts.effect` takes them:
    position i has token i + 1.
    """
    labels = torch.full_like(ids, -100)
    labels[:, start - 1 : -1] = ids[:, start:]
    return labels


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the rank correlation of two lists; equal numbers share the mean of their ranks."""

    def ranks(numbers: Sequence[float]) -> torch.Tensor:
        given = torch.tensor(numbers, dtype=torch.float64)
        smaller = (given[:, None] > given).sum(1)
        equal = (given[:, None] == given).sum(1)
        return smaller + (equal - 1) / 2

    return float(torch.corrcoef(torch.stack([ranks(one), ranks(other)]))[0, 1])


def style() -> Any:
    """Return pyplot, with the look of all figures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": GREY,
            "axes.labelcolor": GREY,
            "axes.edgecolor": GREY,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "legend.frameon": False,
            "legend.fontsize": 8,
        }
    )
    return pyplot


def save_figure(figure: Any, name: str) -> None:
    """Write a figure beside its page, on white, which dark pages keep."""
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.png", dpi=130, facecolor="white")


class Numbers:
    """The numbers of a page, which its sentences and tables are checked against."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun, self.worked = time.perf_counter(), time.process_time()

    def write(self, **numbers: Any) -> None:
        """Write the numbers to NAME.json beside the page, with where and how long they took."""
        where = device()
        took = {
            "on": torch.cuda.get_device_name() if where.type == "cuda" else "cpu",
            "seconds": round(time.perf_counter() - self.begun),
            "cpu_seconds": round(time.process_time() - self.worked),
            "torch": torch.__version__.partition("+")[0],
        }
        text = json.dumps({**rounded(numbers), "took": took}, indent=1)
        # A list of numbers stays on its line.
        (HERE / f"{self.name}.json").write_text(_inline(text) + "\n", encoding="utf-8")
        print(f"{self.name}: {took['seconds']} s on {took['on']}", flush=True)


def rounded(numbers: Any) -> Any:
    """Return numbers with five significant digits, in lists and mappings too."""
    if isinstance(numbers, dict):
        return {str(name): rounded(value) for name, value in numbers.items()}
    if isinstance(numbers, list | tuple):
        return [rounded(value) for value in numbers]
    if isinstance(numbers, torch.Tensor):
        return rounded(numbers.tolist())
    return float(f"{numbers:.5g}") if isinstance(numbers, float) else numbers


def _inline(text: str) -> str:
    import re

    return re.sub(
        r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()).replace("[ ", "["), text
    ).replace(" ]", "]")


def read(name: str) -> Any:
    """Return the numbers of a page."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
