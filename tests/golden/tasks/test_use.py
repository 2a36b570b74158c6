"""The commands translate, summarize and generate: texts, files and pipes, on a translator that knows five sentences."""

import io
import json
import subprocess
import sys

import pytest
import torch

import telescope as ts
from support import writers

GERMAN = list(writers.PAIRS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "learnt"
    writers.learnt().save(place)
    return str(place)


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "gpt"
    writers.gpt().save(place)
    return str(place)


@pytest.fixture
def pipe(monkeypatch):
    def put(contents):
        stream = io.TextIOWrapper(io.BytesIO(contents if isinstance(contents, bytes) else contents.encode()), "latin-1")
        monkeypatch.setattr(sys, "stdin", stream)

    return put


def output_of(command, *arguments):
    code, printed, complaint = command(*arguments)
    assert (code, complaint) == (0, "")
    return printed


# ---------------------------------------------------------------------------------------------------------- translate


def test_learnt_sentences_are_translated(command, folder):
    for english, german in writers.PAIRS.items():
        assert output_of(command, "translate", english, "--model", folder) == f"{german}\n"


def test_each_argument_is_a_text_of_its_own(command, folder, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("How are you?\nGood morning.\n")
    printed = output_of(command, "translate", "I am tired.", "", str(file), "Good morning.", "--model", folder)
    assert printed == "Ich bin müde.\n\nWie geht es dir?\nGuten Morgen.\nGuten Morgen.\n"
    lines = output_of(command, "translate", "I am tired.", "Good morning.", "--json", "--model", folder).splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["I am tired.", "Good morning."]


def test_a_pipe_among_the_arguments(command, folder, pipe):
    pipe("How are you?\n")
    assert (
        output_of(command, "translate", "Good morning.", "-", "--model", folder) == "Guten Morgen.\nWie geht es dir?\n"
    )
    code, printed, complaint = command("translate", "-", "-", "--model", folder)
    assert (code, printed) == (2, "")
    assert '"-" is given twice' in complaint


def test_a_line_of_several_sentences_is_one_line(command, folder):
    printed = output_of(command, "translate", "Good morning. Mr. Smith is here. How are you?", "--model", folder)
    assert printed == "Guten Morgen. Herr Schmitz ist hier. Wie geht es dir?\n"


LINES = "\ufeffGood morning.\r\n\n   \nI am tired. How are you?\n" + "How are you?\n" * 70 + "Good morning."
TRANSLATED = "Guten Morgen.\n\n\nIch bin müde. Wie geht es dir?\n" + "Wie geht es dir?\n" * 70 + "Guten Morgen.\n"


@pytest.mark.parametrize("how", [["-"], []])
def test_a_pipe_is_translated_line_by_line(command, folder, pipe, how):
    pipe(LINES)
    assert output_of(command, "translate", *how, "--model", folder) == TRANSLATED


def test_a_file_is_translated_line_by_line(command, folder, tmp_path):
    file = tmp_path / "a text"
    file.write_bytes(LINES.encode())
    assert output_of(command, "translate", str(file), "--model", folder) == TRANSLATED


def test_n_best_have_scores_and_the_best_comes_first(command, folder):
    printed = output_of(command, "translate", "Good morning.", "--model", folder, "--n-best", "3", "--beams", "4")
    scores, texts = zip(*(line.split("  ", 1) for line in printed.splitlines()), strict=True)
    assert texts[0] == "Guten Morgen."
    assert len(set(texts)) == 3
    assert sorted(map(float, scores), reverse=True) == list(map(float, scores))


def test_json_has_every_number(command, folder, pipe):
    pipe("I am tired. Good morning.\n\nHow are you?\n")
    lines = [
        json.loads(line) for line in output_of(command, "translate", "--json", "--show", "--model", folder).splitlines()
    ]
    assert [line["text"] for line in lines] == ["Ich bin müde. Guten Morgen.", "", "Wie geht es dir?"]
    assert [line["source"] for line in lines] == ["I am tired. Good morning.", "", "How are you?"]
    (tired, morning), nothing, (how,) = (line["parts"] for line in lines)
    assert (tired["source"], morning["source"], nothing) == ("I am tired.", "Good morning.", [])
    aligned = how["texts"][0]["alignment"]
    assert aligned["rows"] == ["Wie", "geht", "es", "dir", "?", "</s>"]
    assert aligned["columns"] == ["How", "are", "you", "?", "</s>"]
    assert torch.allclose(torch.tensor(aligned["weights"]).sum(-1), torch.ones(6))


def test_show_draws_the_alignment_below_the_text(command, folder):
    printed = output_of(command, "translate", "How are you?", "--show", "--model", folder).splitlines()
    assert printed[0] == "Wie geht es dir?"
    assert "decoder." in printed[1]
    assert printed[2].split() == ["How", "are", "you", "?", "</s>"]
    rows = {line.split()[0]: list(map(int, line.split()[1:])) for line in printed[3:]}
    assert list(rows) == ["Wie", "geht", "es", "dir", "?", "</s>"]
    assert all(97 <= sum(row) <= 103 for row in rows.values())  # hundredths, rounded


def test_a_sentence_longer_than_the_model_reads_is_translated_in_pieces(command, folder):
    printed = json.loads(output_of(command, "translate", "tired " * 200, "--model", folder, "--json", "--beams", "1"))
    assert len(printed["parts"]) > 4
    assert " ".join(part["source"] for part in printed["parts"]) == ("tired " * 200).strip()


def test_a_model_in_half_precision_is_loaded_in_float32(command, tmp_path):
    """The text then depends on the rounded weights alone, in every batch and on every machine."""
    model = writers.learnt()
    half = ts.models.Transformer(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.tokenizer, half.special = model.tokenizer, model.special
    half.save(tmp_path / "half")
    assert output_of(command, "translate", writers.NOTES, "--model", str(tmp_path / "half")) == f"{GERMAN[0]}\n"


# ---------------------------------------------------------------------------------------------------------- summarize


def test_a_document_is_read_whole(command, folder, pipe):
    pipe("Good\nmorning.\n")
    summary = json.loads(output_of(command, "summarize", "-", "--model", folder, "--json"))
    assert [part["source"] for part in summary["parts"]] == ["Good\nmorning."]
    assert summary["source"] == "Good\nmorning.\n"


def test_each_document_is_summarized_alone(command, folder):
    texts = ["Good morning.", "I am tired."]
    alone = [output_of(command, "summarize", text, "--model", folder) for text in texts]
    assert output_of(command, "summarize", *texts, "--model", folder) == "".join(alone)
    lines = output_of(command, "summarize", *texts, "--model", folder, "--json").splitlines()
    assert [json.loads(line)["source"] for line in lines] == texts


def test_a_long_document_is_summarized_in_parts(command, folder, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("I am tired.\n" * 40)
    printed = json.loads(output_of(command, "summarize", str(file), "--model", folder, "--json", "--beams", "2"))
    parts = [part["source"] for part in printed["parts"]]
    assert len(parts) > 2
    assert " ".join(parts) == " ".join(["I am tired."] * 40)
    longest = [len(writers.learnt().tokenizer.encode(f"{part} I am tired.").ids) for part in parts[:-1]]
    assert min(longest) > 48  # no sentence more would have fitted
    plain = output_of(command, "summarize", str(file), "--model", folder, "--beams", "2")
    assert plain.splitlines() == printed["text"].splitlines()


# ----------------------------------------------------------------------------------------------------------- generate


def test_generate_writes_more_tokens_than_the_model_has_positions(command, writer):
    printed = output_of(command, "generate", "ROMEO:", "--model", writer, "--max-new-tokens", "50", "--seed", "4")
    assert printed.startswith("ROMEO:")
    assert len(printed) == len("ROMEO:") + 50 + len("\n")
    assert printed == output_of(
        command, "generate", "ROMEO:", "--model", writer, "--max-new-tokens", "50", "--seed", "4"
    )
    assert printed != output_of(
        command, "generate", "ROMEO:", "--model", writer, "--max-new-tokens", "50", "--seed", "5"
    )


def test_each_prompt_is_continued_alone(command, writer):
    how = ["--model", writer, "--max-new-tokens", "9", "--seed", "4"]
    alone = [output_of(command, "generate", prompt, *how) for prompt in ("ROMEO:", "O")]
    assert output_of(command, "generate", "ROMEO:", "O", *how) == "".join(alone)
    lines = output_of(command, "generate", "ROMEO:", "O", *how, "--json").splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["ROMEO:", "O"]


def test_streamed_text_equals_text_written_at_once(command, writer):
    how = ["generate", "ROMEO:", "--model", writer, "--max-new-tokens", "60", "--temperature", "0.5", "--top-k", "9"]
    at_once = json.loads(output_of(command, *how, "--json"))
    assert at_once["source"] + at_once["text"] + "\n" == output_of(command, *how)


def test_within_its_positions_the_text_is_that_of_generate(command, writer):
    (written,) = ts.decoding.generate(writers.gpt(), "ROMEO:", max_new_tokens=19, temperature=0.8, seed=2)
    printed = output_of(command, "generate", "ROMEO:", "--model", writer, "--max-new-tokens", "19", "--seed", "2")
    assert printed == f"ROMEO:{written.text}\n"


def test_a_prompt_longer_than_the_model_reads_is_continued_from_its_end(command, writer):
    long = "O Romeo, Romeo! wherefore art thou Romeo?"
    how = ["--model", writer, "--max-new-tokens", "10", "--temperature", "0"]
    end = output_of(command, "generate", long[-12:], *how)
    assert output_of(command, "generate", long, *how) == long[:-12] + end


def test_a_prompt_keeps_its_lines(command, writer, pipe):
    pipe("ROMEO:\nO\n")
    assert output_of(command, "generate", "--model", writer, "--max-new-tokens", "3").startswith("ROMEO:\nO\n")
    pipe("")
    assert len(output_of(command, "generate", "--model", writer, "--max-new-tokens", "3")) == 4


def test_several_samples_have_consecutive_seeds(command, writer):
    how = ["generate", "O", "--model", writer, "--max-new-tokens", "8", "--json"]
    texts = [text["text"] for text in json.loads(output_of(command, *how, "--n-best", "2"))["parts"][0]["texts"]]
    alone = [json.loads(output_of(command, *how, "--seed", str(seed)))["text"] for seed in (0, 1)]
    assert texts == alone
    assert texts[0] != texts[1]


def test_a_beam_finds_the_likeliest(command, writer):
    found = ts.decoding.beam(writers.gpt(), ["ROMEO:"], beams=3, n_best=3, max_new_tokens=6)[0]
    how = ["generate", "ROMEO:", "--model", writer, "--max-new-tokens", "6", "--beams", "3", "--n-best", "3", "--json"]
    texts = json.loads(output_of(command, *how))["parts"][0]["texts"]
    assert [text["text"] for text in texts] == [written.text for written in found]


def test_show_of_a_text_without_tokens(command, writer):
    options = ("generate", "ROMEO: O", "--model", writer, "--max-new-tokens", "0", "--beams", "2", "--show")
    assert output_of(command, *options).strip() == "ROMEO: O"
    assert "alignment" not in output_of(command, *options, "--json")


def test_show_of_a_continued_prompt(command, writer):
    printed = output_of(command, "generate", "ROMEO: O", "--model", writer, "--max-new-tokens", "12", "--show")
    assert printed.startswith("ROMEO: O")
    assert "blocks." in printed


# ------------------------------------------------------------------------------------------------------------- shapes


def test_a_luong_translator_translates_too(command, tmp_path):
    model = writers.luong()
    model.save(tmp_path / "luong")
    printed = json.loads(
        output_of(command, "translate", "I am", "--model", str(tmp_path / "luong"), "--json", "--show")
    )
    aligned = printed["parts"][0]["texts"][0]["alignment"]
    assert aligned["attention"] == "cross"
    assert aligned["columns"] == ["I", "am", "</s>"]


def test_loading_does_not_wait_for_a_compiler(folder):
    """torch imports its compiler, for seconds, if a model on the meta device is initialised."""
    line = "import sys, telescope as ts; ts.load(sys.argv[1]); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", line, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
