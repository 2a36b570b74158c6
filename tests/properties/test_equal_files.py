"""Equal models, recordings and atlases have equal files, whichever process writes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import telescope as ts

TESTS = Path(__file__).parents[1]
SOURCE = os.pathsep.join([str(Path(ts.__file__).parents[1]), str(TESTS)])

# Sets and dicts in Rust have another order each time, those in Python in each process.
SCRIPT = """
import json, sys, torch
from hashlib import sha256
from pathlib import Path
from tokenizers import Tokenizer, models
import telescope as ts
from support import mapping

torch.set_num_threads(1)
out = Path(sys.argv[1])
model = mapping.tiny_gpt()
names = {"blocks.0.self", "blocks.1.self", "blocks.*"}
with torch.no_grad(), ts.watch(model, tokenizer=mapping.Letters()) as recording:
    model(torch.arange(20)[None])
recording.save(out / "recording")
recording.to_parquet(out / "tables")
mapping.make(mapping.corpus(4), layers=names, out=out / "atlas")
model.tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(mapping.LETTERS)}, "a"))
model.tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
for number in range(6):
    model.save(out / f"model-{number}")
    ts.export(model, out / f"export-{number}")
files = {str(file.relative_to(out)): sha256(file.read_bytes()).hexdigest() for file in out.rglob("*") if file.is_file()}
print(json.dumps(files))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The checksums of all files, by name, of two processes that write the same."""
    running = []
    for seed in ("1", "2"):
        settled = {"PYTHONHASHSEED": seed, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp(seed))]
        running.append(
            subprocess.Popen(
                command, env=os.environ | settled, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    found = []
    for process in running:
        printed, complaint = process.communicate(timeout=300)
        assert process.returncode == 0, complaint
        found.append(json.loads(printed))
    return found


def test_two_processes_write_equal_files(written):
    first, second = written
    assert len(first) > 20
    assert {name: first[name] for name in first if first[name] != second.get(name)} == {}
    assert first.keys() == second.keys()


def test_one_process_writes_equal_files_again(written):
    for found in written:
        for name, checksum in found.items():
            kind, _, rest = name.partition("-")
            if kind in ("model", "export"):
                assert checksum == found[f"{kind}-0/{rest.partition('/')[2]}"], name
