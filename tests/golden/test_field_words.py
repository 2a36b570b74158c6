"""The words of others lead to our calls: in errors about names that are not there, and in the glossary."""

import copy
import json
import pickle
import re
import subprocess
import sys

import pytest
import torch

import telescope as ts
from support.repository import HOME
from telescope import field_words
from telescope.field_words import WORDS, glossary
from telescope.guesses import (
    OF_ATLAS,
    OF_HEAD,
    OF_PACKAGE,
    OF_RECORDING,
    OF_SOURCES,
    OF_SURVEY,
    OF_TABLE,
    OF_TRACE,
    OF_WATCHED,
)


@pytest.fixture(scope="module")
def recording():
    torch.manual_seed(0)
    model = ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=2, heads=2)).eval()
    with ts.watch(model, keep="steps") as found, torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5, 6]]))
    return found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ablate", 'telescope has no "ablate"; what others call ablation is ts.mute (a head) or ts.hide (keys)'),
        ("knockout", 'telescope has no "knockout"; what others call attention knock-out is ts.hide(keys, queries=...)'),
        ("logit_lens", 'telescope has no "logit_lens"; what others call logit lens is recording.lens()'),
        ("Ablate", 'telescope has no "Ablate"; what others call ablation is ts.mute (a head) or ts.hide (keys)'),
        ("atend", 'telescope has no "atend"; did you mean "attend"?'),
        ("qqqq", 'telescope has no "qqqq"; dir(telescope) lists what it has'),
    ],
)
def test_a_name_of_others_leads_to_ours(name, said):
    with pytest.raises(AttributeError) as problem:
        getattr(ts, name)
    assert str(problem.value) == said
    assert not hasattr(ts, name)


def test_every_name_leads_somewhere_and_none_hides_ours():
    names = [name for one in WORDS for name in one.names]
    assert len(names) == len(set(names))
    assert not {name for name in names if hasattr(ts, name)}
    for name in ("ablation", "patching", "activation_patching", "attention_pattern", "pattern", "dla", "steer"):
        with pytest.raises(AttributeError, match="what others call"):
            getattr(ts, name)
    for name in ("direct_logit_attribution", "head_importance", "ov_circuit", "composition_scores", "rollout"):
        assert name in names


def test_the_calls_of_the_table_exist(recording):
    parts = {"recording": recording, "ts": ts, "recording[layer]": recording["blocks.0.self"]}
    found = set()
    for one in WORDS:
        for owner, name in re.findall(r"\b(ts|recording\[layer\]|recording)\.(\w+)", one.call):
            found.add(f"{owner}.{name}")
            assert hasattr(parts[owner], name), one.call
    assert len(found) > 15
    for ours in OF_RECORDING.values():
        owner, name = re.search(r"^(recording\[layer\]|recording|ts)\.(\w+)", ours).groups()
        assert hasattr(parts[owner], name), ours
    for ours in OF_WATCHED.values():
        first, *_ = re.findall(r"\.(\w+)", ours)
        assert hasattr(recording["blocks.0.self"], first), ours
    # What a table names is not shadowed by what it has.
    assert not [name for name in OF_RECORDING if hasattr(recording, name)]
    assert not [name for name in OF_WATCHED if hasattr(recording["blocks.0.self"], name)]
    assert not [name for name in OF_TABLE if hasattr(recording.heads(), name)]


def test_the_ways_of_other_objects_exist(recording):
    """What is named first is there, and no word of others hides what is there."""
    layer = recording["blocks.0"]
    objects = {
        "head": (recording.heads()[0], OF_HEAD),
        "survey": (layer.survey(), OF_SURVEY),
        "trace": (layer.trace(), OF_TRACE),
        "sources": (recording.sources(-1), OF_SOURCES),
        "atlas": (ts.Atlas, OF_ATLAS),
        "effects": (ts.Effects, OF_TABLE),
        "comparison": (ts.Comparison, OF_TABLE),
    }
    for one, ours in objects.values():
        assert not [name for name in ours if hasattr(one, name)]
    for one, ours in list(objects.values())[:5]:
        for way in ours.values():
            if way.startswith("."):
                assert hasattr(one, re.findall(r"\.(\w+)", way)[0]), way
    assert not [name for name in OF_PACKAGE if hasattr(ts, name)]
    for way in OF_PACKAGE.values():
        for name in re.findall(r"\bts\.(\w+)", way):
            assert hasattr(ts, name), way


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (
            lambda own: own.pattern,
            "a Recording has no attribute 'pattern'; what others call pattern is recording",
        ),
        (lambda own: own.head, "a Recording has no attribute 'head'; did you mean \"heads\"?"),
        (
            lambda own: own["blocks.0"].attention,
            "a Watched has no attribute 'attention'; what others call attention is",
        ),
        (lambda own: own["blocks.0"].entropie, "a Watched has no attribute 'entropie'; did you mean \"entropy\"?"),
        (
            lambda own: own.heads().to_pandas(),
            "a Heads has no attribute 'to_pandas'; what others call to_pandas",
        ),
        (lambda own: own.qqqq, "a Recording has no attribute 'qqqq'"),
    ],
)
def test_an_attribute_of_others_leads_to_ours(recording, read, said):
    with pytest.raises(AttributeError, match=f"^{re.escape(said)}"):
        read(recording)


def test_protocols_of_python_are_left_alone(recording):
    """Copies and pickles ask objects without attributes for names; notebooks ask for names with an underscore."""
    heads = recording.heads()
    for one in (copy.copy(heads), copy.deepcopy(heads), pickle.loads(pickle.dumps(heads))):
        assert repr(one) == repr(heads)
    empty = object.__new__(ts.Recording)
    for name in ("_repr_svg_", "__array__", "__rich_console__", "_ipython_display_", "pattern"):
        assert not hasattr(empty, name)
        assert not hasattr(recording, name)
    with pytest.raises(AttributeError, match=r"^a Recording has no attribute '_watched'$"):
        _ = empty._watched


class Failing(field_words.FieldNames):
    @property
    def broken(self):
        return self.missing_part


def test_a_property_that_fails_says_what_it_lacks():
    with pytest.raises(AttributeError, match=r"^a Failing has no attribute 'missing_part'$"):
        _ = Failing().broken


def test_errors_about_names_import_no_torch():
    """But for that of an unknown name, which lists the known ones: importing them needs torch."""
    code = "import sys, telescope.field_words; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]


def test_the_words_on_the_page_are_in_the_glossary():
    """In the order of the page's own list, and each with the meaning that the page shows."""
    source = json.loads((HOME / "web/parts/terms.json").read_text(encoding="utf-8"))
    assert list(source) == sorted(source, key=str.lower)
    page = (HOME / "docs/reference/glossary.md").read_text(encoding="utf-8")
    section = page.partition("## Words on the page")[2]
    found = re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- |\Z)", section, flags=re.MULTILINE | re.DOTALL)
    assert {word: " ".join(meaning.split()) for word, meaning in found} == source


def test_the_glossary_is_written_from_the_table():
    """To write it again: python -c "from telescope.field_words import glossary; print(*glossary(), sep='\\n')"."""
    page = (HOME / "docs/reference/glossary.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("|")] == glossary()
    wanted = (
        "ablation|activation patching|path patching|attribution patching|attention pattern|direct logit attribution"
    )
    wanted += "|logit lens|QK circuit|OV circuit|composition|attention knock-out|steering|attention sink|induction head"
    wanted += "|retrieval head|attention rollout|saliency"
    assert set(wanted.split("|")) <= {one.word for one in WORDS}
    for one in WORDS:
        assert one.meaning.endswith(".")
        assert re.search(r"\b(19|20)\d\d\b", one.paper), one.word
