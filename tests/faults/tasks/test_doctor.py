"""`telescope doctor` finds what is wrong with an engine, and says so by its exit code."""

import json
from dataclasses import replace
from math import log

import pytest
import torch

import telescope as ts
from support.strategies import Shape, tensors
from telescope.engines import chunked, flex, reference
from telescope.tasks import doctor
from telescope.tasks.doctor import EngineCheck, row_sums, run_check

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(doctor, "SIZE", (1, 2, 21, 16))
    monkeypatch.setitem(doctor.TIMED, "cpu", (1, 1, 8, 8))


@pytest.fixture(autouse=True, scope="module")
def on_a_cpu():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


def masked(attention=ts.Attention(mask=ts.causal)):
    q, k, v = tensors(Shape(1, 2, 2, 9, 9))
    return reference.steps(q, k, v, attention).masked


def test_a_healthy_machine(command):
    code, out, err = command("doctor", "--plain")
    assert (code, err) == (0, "")
    assert "attend  sdpa (flash)" in out
    assert out.count("right") >= 5
    assert f"torch {torch.__version__}" in out


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.1+cu132", "2.15.0a0+git1234"])
def test_a_tested_torch_is_not_mentioned(version):
    assert doctor.untested_torch(version) == ""


@pytest.mark.parametrize("version", ["2.10.2", "2.16.0", "2.16.0.dev20300101+cpu", "3.0.0", "2.9.1"])
def test_an_untested_torch_is_named(version):
    sentence = f"torch {version} is untested: telescope {ts.__version__} was tested on 2.11 to 2.15"
    assert doctor.untested_torch(version).startswith(sentence)


def test_doctor_prints_that_torch_is_untested(command, monkeypatch):
    """An untested torch is no error: every engine below is compared with float64 all the same."""
    tested = command("doctor", "--plain")[1]
    monkeypatch.setattr(doctor, "TESTED_TORCH", ((1, 0), (1, 9)))
    code, out, _ = command("doctor", "--plain")
    assert code == 0
    assert out.splitlines()[1].startswith(f"torch {torch.__version__} is untested: telescope")
    assert "untested" not in tested


def test_json_holds_every_digit(command):
    code, out, _ = command("doctor", "--json")
    report = json.loads(out)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert code == 0
    assert set(found["attend  chunked"]["errors"]) == {"float32", "bfloat16", "float16"}
    assert 0 < found["attend  reference"]["errors"]["float32"] < 1e-5
    assert found["survey  chunked"]["rows"] == "1"
    assert found["attend  sdpa (flash)"]["ms"] > 0


def test_a_wrong_engine_is_found(command, monkeypatch):
    right = chunked.attend
    monkeypatch.setattr(chunked, "attend", lambda q, k, v, attention: right(q, k, v, attention) * 1.01)
    code, out, _ = command("doctor")
    assert code == 1
    (line,) = (line for line in out.splitlines() if line.startswith("attend  chunked"))
    assert "off by" in line
    assert "right" not in line


@pytest.mark.parametrize("wrong", [lambda context: context * torch.nan, lambda context: context.flip(2)])
def test_nan_and_order_count_as_wrong(wrong):
    check = EngineCheck("x", ts.Attention(), lambda *_: None, lambda q, k, v: wrong(ts.attend(q, k, v)))
    assert "off by" in run_check(check, CPU).wrong


def test_an_lse_of_base_two_is_found():
    natural = masked().logsumexp(-1)
    assert row_sums(masked(), natural) == "1"
    assert row_sums(masked(), natural.float()[..., None]) == "1"
    assert row_sums(masked(), natural / log(2.0)) == "1 in base 2 only: multiply it by ln 2"
    assert row_sums(masked(), natural + 1.0) == "0.368"
    assert row_sums(masked(), natural * torch.nan) == "nan"


def test_an_engine_with_an_lse_of_base_two_is_wrong():
    check = next(doctor.engine_checks(CPU, every=False))
    natural = check.lse
    assert run_check(check, CPU).wrong == ""
    report = run_check(replace(check, lse=lambda q, k, v: natural(q, k, v) / log(2.0)), CPU)
    assert report.wrong == "rows of exp(score - lse) sum to 1 in base 2 only: multiply it by ln 2 in float32"


def test_the_reason_why_an_engine_cannot_run_is_printed(monkeypatch):
    monkeypatch.setattr(flex, "cannot", lambda *_: None)
    found = {finding.name: finding for finding in doctor.check_engines(CPU).findings}
    assert "telescope doctor --all" in found["attend  flex"].missing
    monkeypatch.setattr(flex, "cannot", lambda *_: "on a CPU it needs the C++ compiler g++")
    found = {finding.name: finding for finding in doctor.check_engines(CPU).findings}
    assert found["attend  flex"].missing == "on a CPU it needs the C++ compiler g++"
    assert found["survey  triton"].missing


def test_an_engine_that_refuses_every_dtype_does_not_run():
    def refuse(*_):
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    finding = run_check(EngineCheck("x", ts.Attention(), lambda *_: None, refuse), CPU)
    assert (finding.missing, finding.wrong, finding.ms) == ("No available kernel. Aborting execution.", "", None)
