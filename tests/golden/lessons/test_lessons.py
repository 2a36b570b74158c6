"""Every lesson runs with its solutions, its notebook is up to date, and a wrong solution is told what is wrong."""

import json
import re
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  as everyone writes it

from support.repository import HOME, blocks

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
import telescope
from telescope.lessons import WrongAnswer, check, matrices

LESSONS = sorted((HOME / "docs" / "lessons").glob("[0-9]*.md"))
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def one_thread(tmp_path, monkeypatch):
    """Each lesson starts in an empty folder, with torch as it is in a new process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


def text_of(lesson):
    return lesson.read_text(encoding="utf-8")


@every_lesson
def test_a_lesson_runs_with_its_solutions(lesson):
    names, pictures, checks = {"__name__": "__main__"}, 0, 0
    for package in blocks.missing(text_of(lesson)):
        pytest.importorskip(package)
    for _, result in blocks.run_page(text_of(lesson), lesson.name, names):
        pictures += len(result.pictures)
        checks += result.printed.count("✓")
    assert pictures >= 1
    assert checks >= 2


LONGEST_LESSON = 30
WORDS_A_MINUTE = 150


def folded(text, title):
    """Return what is folded in a text under a title, "Hint" or "Solution"."""
    return re.findall(rf"<details[^>]*><summary>{title}</summary>\n(.+?)</details>", text, flags=re.S)


def gives_away(hint, solution):
    """Return what of a hint is a complete solution, or None: a block of code, or every step of the solution."""
    if blocks.blocks(hint):
        return "a block of code"
    (code,) = [block.code for block in blocks.blocks(solution)]
    steps = [line for line in code.splitlines() if line.strip() and not line.startswith("def ")]
    said = [squeezed(step) in squeezed(hint) for step in map(value_of, steps)]
    return code if all(said) else None


def value_of(line):
    """Return what a line of code computes, without `return` or the name that is assigned."""
    return line.strip().removeprefix("return ").split(" = ")[-1]


def squeezed(text):
    return re.sub(r"[\s`]+", "", text)


def prose(text):
    """Return what a reader reads first: no code, nothing that is folded, no comments, no stars of exercises."""
    for unread in (r"<details.+?</details>", r"^```.+?^```", r"<!--.+?-->", r"^Difficulty .+?$"):
        text = re.sub(unread, "", text, flags=re.M | re.S)
    return text


def test_a_hint_that_gives_the_solution_away_is_found():
    solution = "\n```python\ndef scores(x):\n    return x @ x.mT\n```\n"
    assert gives_away("Multiply x by its transpose.", solution) is None
    assert gives_away("It is `x @ x.mT`.", solution)
    assert gives_away("\n```python\nx\n```\n", solution) == "a block of code"
    assert gives_away("Take zeros: `torch.zeros(3, 2)`.", "\n```python\nW_k = torch.zeros(3, 2)\n```\n")


@every_lesson
def test_a_lesson_has_the_form_of_all_lessons(lesson):
    text = text_of(lesson)
    number = int(lesson.stem[:2])
    assert text.startswith(f"# {number}. ")
    (minutes,) = re.findall(r"\*\*You will learn\*\* .+?\s\*\*Time:\*\* (\d+) minutes\.", text, flags=re.S)
    assert 10 <= int(minutes) <= LONGEST_LESSON
    for heading in ("## The question", "## What to notice", "## Exercises"):
        assert heading in text
    exercises = re.split(rf"^### {number}\.\d ", text, flags=re.M)[1:]
    assert 2 <= len(exercises) <= 3
    for exercise in exercises:
        assert re.search(r"^Difficulty [●○]{5} · importance [●○]{5} · \d+ minutes$", exercise, flags=re.M)
        parts = [block for block in blocks.blocks(exercise) if block.language == "python"]
        solutions = sum(block.folded for block in parts)
        stubs = sum("raise NotImplementedError" in block.code or "= ..." in block.code for block in parts)
        assert solutions == stubs == sum(block.code.startswith("check.") for block in parts) >= 1
        hints, answers = folded(exercise, "Hint"), folded(exercise, "Solution")
        assert len(hints) == len(answers) == solutions
        for hint, answer in zip(hints, answers, strict=True):
            assert exercise.index(hint) < exercise.index(answer)
            assert gives_away(hint, answer) is None
    # Whoever does the exercises in their time has the rest of the lesson's time to read.
    worked = sum(map(int, re.findall(r"^Difficulty .+ · (\d+) minutes$", text, flags=re.M)))
    reading = len(prose(text).split()) / WORDS_A_MINUTE
    assert worked + reading <= int(minutes), f"{worked} minutes of exercises, {reading:.1f} of reading"
    index = text_of(LESSONS[0].with_name("index.md"))
    assert f"({lesson.name})" in index
    code = {line for block in blocks.blocks(text) for line in block.code.splitlines()}
    for line in text.splitlines():
        assert len(line) <= (88 if line in code else 120), line


@every_lesson
def test_a_notebook_is_what_its_page_says(lesson):
    """`python tools/blocks.py` writes the notebooks."""
    file = HOME / "lessons" / f"{lesson.stem}.ipynb"
    assert file.read_text(encoding="utf-8") == blocks.notebook_text(lesson)
    assert all(not cell.get("outputs") for cell in json.loads(file.read_text(encoding="utf-8"))["cells"])


@every_lesson
def test_an_exercise_that_was_not_begun_is_told_so(lesson):
    names = {"check": check, "torch": torch}
    for block in blocks.blocks(text_of(lesson)):
        if block.folded or block.language != "python":
            continue
        if "raise NotImplementedError" in block.code or "= ..." in block.code:
            exec(block.code, names)
        elif block.code.startswith("check."):
            with pytest.raises(WrongAnswer, match=r"is not written yet|is not given yet"):
                exec(block.code, names)


def minutes_of(lesson):
    return int(re.search(r"\*\*Time:\*\* (\d+) minutes", text_of(lesson))[1])


def test_the_index_gives_the_times_of_the_lessons_and_its_paths_keep_theirs():
    index = text_of(LESSONS[0].with_name("index.md"))
    table = dict(re.findall(r"^\| \[\d+\. .+?\]\((.+?)\) \| (\d+) \|", index, flags=re.M))
    assert table == {lesson.name: str(minutes_of(lesson)) for lesson in LESSONS}
    for path, hours in (("Two hours", 2), ("An afternoon", 4)):
        section = index.split(f"### {path}\n")[1].split("\n#")[0]
        assert sum(int(table[name]) for name in re.findall(r"\((\d.+?)\)", section)) <= 60 * hours
    semester = index.split("### A semester\n")[1].split("\n#")[0]
    assert set(re.findall(r"\((\d.+?)\)", semester)) == set(table)


def test_the_first_step_of_every_project_runs():
    page = text_of(LESSONS[0].with_name("projects.md"))
    for package in blocks.missing(page):
        pytest.importorskip(package)
    printed = [result.printed for _, result in blocks.run_page(page, "projects.md")]
    projects = re.split(r"^## \d\. ", page, flags=re.M)[1:]
    assert 6 <= len(projects) <= 10
    assert sum(bool(text) for text in printed) == len(projects)
    for project in projects:
        for part in ("**Data:**", "**To use:**", "**First step:**", "**A result:**"):
            assert part in project
    assert sum("(../findings/" in project for project in projects) >= 3


def test_what_is_trained_in_the_matrices_is_in_the_model():
    """Lessons 12 and 13 train a reader's function on them, and look into the model."""
    model = telescope.models.GPT(telescope.models.GPTConfig(vocabulary=7, d_model=8, heads=2, blocks=1, bias=False))
    w = matrices(model)
    before = model(torch.tensor([[1, 2]]))
    with torch.no_grad():
        w["blocks"][0]["feed_forward"]["W_2"].normal_()
    assert not torch.allclose(model(torch.tensor([[1, 2]])), before)
    assert torch.equal(model.blocks[0].feed_forward.W_2.weight.mT, w["blocks"][0]["feed_forward"]["W_2"])


def test_every_check_is_used():
    pages = [*LESSONS, HOME / "docs" / "explanation" / "mla-and-sparse-indexing.md"]
    used = {name for lesson in pages for name in re.findall(r"^check\.(\w+)\(", text_of(lesson), flags=re.M)}
    assert used == set(check.__all__)


def test_solved_notebooks_have_no_stubs():
    for lesson in LESSONS:
        book = blocks.solved(blocks.notebook(text_of(lesson)))
        code = "".join("".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code")
        assert "NotImplementedError" not in code
        assert "= ..." not in code


def past(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def past_only(index):
    return index.masked_fill(~past(len(index)), -torch.inf)


def weigh(raw, v):
    return raw.softmax(-1) @ v


def sliced(x, q, k, v, o, heads, off):
    """Return multi-head attention with a slice of the output set to 0: the mistake that people make with hooks."""
    parts = [(x @ W).reshape(len(x), heads, -1).transpose(0, 1) for W in (q, k, v)]
    width = parts[0].shape[-1]
    context = weigh(parts[0] @ parts[1].mT / width**0.5, parts[2])
    y = context.transpose(0, 1).reshape(len(x), -1) @ o
    y[:, off * width : (off + 1) * width] = 0.0
    return y


def written_by_keys(w, v, W_o):
    return w[:, None] * (v @ W_o)


def centred(parts):
    return parts - parts.mean(-1, keepdim=True)


def spread(x):
    return (x.var(correction=0) + 1e-5).sqrt()


WRONG = [
    (check.latent_context, lambda q, c, k, v: ((q @ (c @ k).mT) / sqrt(6)).softmax(-1) @ (c @ v), "keys of the heads"),
    (check.latent_context, lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(6)).softmax(-1) @ (c @ v), "values of the heads"),
    (
        check.latent_context,
        lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(5)).softmax(-1) @ c @ v,
        "the width of the cache",
    ),
    (check.latent_context, lambda q, c, k, v: (q @ k.mT @ c.mT).softmax(-1) @ c @ v, "not divided by √d"),
    (check.latent_context, lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(6)).softmax(-1) @ c, "mixtures of c"),
    (check.latent_context, lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(6)).softmax(-1), "these are the weights"),
    (check.latent_context, lambda q, c, k, v: (q @ k.mT @ c.mT / sqrt(6)).softmax(1) @ c @ v, "over the queries"),
    (
        check.latent_context,
        lambda q, c, k, v: ((q @ k.mT @ c.mT / sqrt(6)).softmax(-1) @ c @ v).sum(0),
        "heads are summed",
    ),
    (check.kept_weight, lambda w, i, k: w.gather(-1, i.topk(k).indices).sum(-1), "keys of the future"),
    (check.kept_weight, lambda w, i, k: w.topk(k).values.sum(-1), "without knowing the weights"),
    (check.kept_weight, lambda w, i, k: w[:, past_only(i)[-1].topk(k).indices].sum(-1), "a choice of its own"),
    (check.kept_weight, lambda w, i, k: w.gather(-1, past_only(i).topk(k).indices), "of the single keys"),
    (
        check.kept_weight,
        lambda w, i, k: w.gather(-1, past_only(i).topk(k).indices).mean(-1),
        "mean weight of a chosen key",
    ),
    (check.kept_weight, lambda w, i, k: w.gather(-1, past_only(i).topk(k).indices).sum(-1).mean(), "a number for each"),
    (
        check.kept_weight,
        lambda w, i, k: 1 - w.gather(-1, past_only(i).topk(k).indices).sum(-1),
        "the weight that is lost",
    ),
    (check.split_score, lambda a, b, q, k, scale: (a @ q) @ (b @ k).mT, "not multiplied by the scale"),
    (check.split_score, lambda a, b, q, k, scale: (a @ q * scale) @ (b @ k * scale).mT, "the scale stands twice"),
    (check.split_score, lambda a, b, q, k, scale: (a @ q) @ (b @ k).mT / sqrt(5), "the scale that is given"),
    (check.split_score, lambda a, b, q, k, scale: (a @ q) @ (b @ k).mT / scale, "divided by the scale"),
    (check.split_score, lambda a, b, q, k, scale: (a.sum(0) @ q) @ (b.sum(0) @ k) * scale, "the sum of the table"),
    (check.split_score, lambda a, b, q, k, scale: a @ b.mT * scale, "not projected"),
    (check.split_score, lambda a, b, q, k, scale: (a @ k) @ (b @ q).mT * scale, "W_q and W_k are exchanged"),
    (check.split_score, lambda a, b, q, k, scale: (a @ q) @ (b.sum(0) @ k) * scale, "over the key's authors"),
    (check.split_score, lambda a, b, q, k, scale: (b @ k) @ (a.sum(0) @ q) * scale, "over the query's authors"),
    (check.split_score, lambda a, b, q, k, scale: (b @ k) @ (a @ q).mT * scale, "it is transposed"),
    (check.held_norm, lambda x, p, g: torch.nn.functional.layer_norm(p, p.shape[-1:], g), "normalised by itself"),
    (check.held_norm, lambda x, p, g: torch.nn.functional.layer_norm(p, p.shape[-1:]), "the gain is missing"),
    (check.held_norm, lambda x, p, g: p / spread(x) * g, "the mean is forgotten"),
    (check.held_norm, lambda x, p, g: p / spread(x), "the mean and the gain are forgotten"),
    (check.held_norm, lambda x, p, g: centred(p) / spread(x), "the gain is forgotten"),
    (check.held_norm, lambda x, p, g: (p - x.mean()) / spread(x) * g, "as often as there are parts"),
    (check.held_norm, lambda x, p, g: (p - x.mean() / len(p)) / spread(x) * g, "shared evenly"),
    (check.held_norm, lambda x, p, g: (p - p.mean(0)) / spread(x) * g, "over the features of each part"),
    (check.held_norm, lambda x, p, g: centred(p) / spread(x) ** 2 * g, "divided by the variance"),
    (check.held_norm, lambda x, p, g: centred(p) / x.std() * g, "correction=0"),
    (check.held_norm, lambda x, p, g: centred(p) / x.square().mean().sqrt() * g, "as in RMSNorm"),
    (check.held_norm, lambda x, p, g: centred(x) / spread(x) * g, "a row for each part"),
    (check.attributed, lambda w, v, o, f, row: (centred(v @ o) * f) @ row, "the weights are missing"),
    (check.attributed, lambda w, v, o, f, row: (written_by_keys(w, v, o) * f) @ row, "the mean is left in"),
    (
        check.attributed,
        lambda w, v, o, f, row: ((written_by_keys(w, v, o) - written_by_keys(w, v, o).mean(0)) * f) @ row,
        "over the features",
    ),
    (check.attributed, lambda w, v, o, f, row: centred(written_by_keys(w, v, o)) @ row, "factor is missing"),
    (check.attributed, lambda w, v, o, f, row: written_by_keys(w, v, o) @ row, "the norm is missing"),
    (check.attributed, lambda w, v, o, f, row: (centred(w @ v @ o) * f) @ row, "a number for each key"),
    (check.attributed, lambda w, v, o, f, row: centred(written_by_keys(w, v, o)) * f * row, "are not summed"),
    (check.attributed, lambda w, v, o, f, row: (centred(written_by_keys(w, v, o)) * f).norm(dim=-1), "a length"),
    (check.carried, lambda w, v, W_o: (w * (v @ W_o).norm(dim=-1)[:, None]).sum((0, 1)), "divide by their sum"),
    (check.carried, lambda w, v, W_o: w.mean((0, 1)), "these are plain weights"),
    (check.rollout, lambda layers: (layers[2] @ layers[1] @ layers[0])[-1], "residual connection is missing"),
    (check.rollout, lambda layers: torch.stack(layers).mean(0)[-1], "multiply them"),
    (check.rank_correlation, lambda a, b: torch.corrcoef(torch.stack([a, b]))[0, 1], "replace each by its rank"),
    (
        check.rank_correlation,
        lambda a, b: torch.corrcoef(torch.stack([x.argsort().float() for x in (a, b)]))[0, 1],
        "ranks are argsort of argsort",
    ),
    (check.corpus_mean, lambda sums, counts: (sums / counts).mean(), "0 / 0"),
    (check.corpus_mean, lambda sums, counts: (sums / counts)[:2].mean(), "a long text has more queries"),
    (check.changed, lambda a, b: b.mean() - a.mean(), "divide it by its standard error"),
    (check.changed, lambda a, b: (b.mean() - a.mean()) / (a.var() + b.var()).sqrt(), "the spread of the texts"),
    (
        check.changed,
        lambda a, b: (b.mean() - a.mean()).abs() / (a.var() / len(a) + b.var() / len(b)).sqrt(),
        "after - before",
    ),
    (check.clipped, lambda q, k, logit, tau: (q * tau / logit, k * tau / logit), "take the root"),
    (check.clipped, lambda q, k, logit, tau: (q * (tau / logit) ** 0.5, k * (tau / logit) ** 0.5), "below the limit"),
    (check.clipped, lambda q, k, logit, tau: q, "should return two matrices"),
    (check.muted, sliced, "W_o has mixed the heads by then"),
    (check.hidden, lambda o, lse, o_g, lse_g: o - (lse_g - lse).exp()[:, None] * o_g, "must sum to 1 again"),
    (check.scores, lambda x: x.mT @ x, "products of features"),
    (check.scores, lambda x: x[:, None] * x, "not summed"),
    (check.scores, lambda x: (x @ x.mT)[:2], r"shape \(2, 6\), and should have \(6, 6\)"),
    (check.scores, lambda x: 2 * x @ x.mT, "2 times too large everywhere"),
    (check.scores, lambda x: x @ x.mT + torch.eye(len(x)), r"is right but for the diagonal: 1\.\d+ at \[0, 0\]"),
    (check.scores, lambda x: (x @ x.mT).tolist(), "should return a tensor of shape .*, and returned a list"),
    (check.scores, lambda x: None, "returned nothing"),
    (check.scores, lambda x: x @ x, r"scores\(a tensor of shape \(6, 3\)\) raised RuntimeError"),
    (check.scores, 3, "should be a function, and is int 3"),
    (check.weight_free, lambda x: (x @ x.mT).softmax(0) @ x, "over the queries"),
    (check.weight_free, lambda x: (x @ x.mT).softmax(-1), "these are the weights"),
    (check.weight_free, lambda x: (x @ x.mT / sqrt(x.shape[1])).softmax(-1) @ x, "lesson 4"),
    (check.softmax, lambda s: s.exp() / s.exp().sum(-1, keepdim=True), r"exp\(1000\) is infinite"),
    (check.softmax, lambda s: s.exp() / s.exp().sum(), "each row has its own"),
    (check.with_temperature, lambda s, temperature: (s * temperature).softmax(-1), "divide the scores by it"),
    (check.negative_weight, [1.0, 2.0, 3.0], "all from 0 to 1"),
    (check.negative_weight, [1.0, -1.0, 0.0], "the sum of these scores is 0"),
    (check.attention_of, lambda x, q, k, v: weigh((x @ q) @ (x @ k).mT, x @ v), "not divided by √d_k"),
    (check.attention_of, lambda x, q, k, v: weigh((x @ q) @ (x @ k).mT / q.shape[1], x @ v), "its square root"),
    (check.attention_of, lambda x, q, k, v: weigh((x @ k) @ (x @ q).mT / q.shape[1] ** 0.5, x @ v), "keys ask"),
    (check.even_weights, torch.ones(3, 2).cumsum(0), "are all keys the same vector"),
    (check.score_variance, lambda q, k: ((q @ k.mT).var().item(),) * 2, "nothing was scaled"),
    (check.score_variance, lambda q, k: ((q @ k.mT).std().item(), 1.0), "standard deviation"),
    (check.score_variance, lambda q, k: 3.0, "two numbers"),
    (check.entropy, lambda w: (w * w.log()).sum(-1), "the sign is missing"),
    (check.entropy, lambda w: -(w * w.log()).sum(-1), "0 · ln 0 is NaN"),
    (check.entropy, lambda w: -(w * w.log2()).sum(-1), "in bits"),
    (check.cosine, lambda a, b: a @ b, "divide it by the lengths"),
    (check.towards, torch.tensor([0.0, 1.0, 0.0]), "a larger dot product with money"),
    (check.causal_mask, lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(), "aligned to the first query"),
    (check.causal_mask, lambda q, k: ~torch.ones(q, k, dtype=torch.bool).tril(k - q), "exchanged"),
    (check.causal_mask, lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q - 1), "see itself too"),
    (check.causal_mask, lambda q, k: torch.ones(q, k).tril(k - q), "use torch.bool"),
    (check.masked_softmax, lambda s, m: s.softmax(-1) * m, "rows do not sum to 1"),
    (check.masked_softmax, lambda s, m: s.masked_fill(~m, -torch.inf).softmax(-1), "sees nothing gives NaN"),
    (check.masked_softmax, lambda s, m: (s * m).softmax(-1), "use -inf"),
    (check.two_readings, lambda target: torch.eye(6)[2] * 20, "reads feature 2"),
    (check.two_readings, lambda target: torch.eye(6)[target], "make it clearer"),
    (check.reads, lambda w, even: int(w.argmax()), "compare each weight with its even share|neither word"),
    (check.reads, lambda w, even: int((w / even).argmax()), "neither word gets more than even"),
    (check.split_heads, lambda x, heads: x.reshape(heads, x.shape[0], -1), "rows are mixed"),
    (check.split_heads, lambda x, heads: x.reshape(x.shape[0], heads, -1), "exchange the first two axes"),
    (check.merge_heads, lambda y: y.reshape(y.shape[1], -1), "before you reshape"),
    (check.multi_head, lambda x, q, k, v, o, heads: weigh(x @ q @ (x @ k).mT / sqrt(8), x @ v) @ o, "one head"),
    (check.parameters, lambda d, m, width, T: d * (2 * m + width) * T, "W_o is missing"),
    (check.luong, lambda s, h: weigh(s @ h.mT / 2, h), "no √d_k"),
    (check.general_score, lambda s, h, W: (s @ W @ h.mT).softmax(-1), "multiply them by the memory"),
    (check.cross_attention, lambda y, m, q, k, v, o, heads: y, "is y, unchanged"),
    (
        check.synthesizer,
        lambda x, A, b, B, c, V: weigh(((x @ A + b).relu() @ B + c)[:, : len(x)], x @ V),
        "mask is missing",
    ),
    (check.synthesizer_parameters, lambda d, block: 2 * d * d + d * block, "b1 and b2 are missing"),
    (check.positions, lambda n, d: torch.zeros(n, d), "is zero everywhere"),
    (check.layer_norm, lambda x: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(), "correction=0"),
    (check.encoder_block, lambda x, w, heads: x[:, :4], "does not use w"),
    (check.decoder_block, lambda y, memory, w, heads: memory, "is memory, unchanged"),
    (check.transformer, lambda s, t, w, heads: w["embedding"][t] @ w["embedding"].mT, "does not use source"),
    (check.gpt, lambda ids, w, heads: w["embedding"][ids] @ w["embedding"].mT, "does not use w"),
    (check.corrupt, lambda words, a, b: [*words[:a], "⁇", *words[b:], *words[a:b]], "there are two ⁇"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x, ids), r"logits\[:-1\] and ids\[1:\]"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x[1:], ids[:-1]), "with the token before"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x, ids.roll(-1)), "it has no next token"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x[:-1], ids[1:], reduction="sum"), "return their mean"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x[:-1], ids[1:], reduction="none"), "for each place"),
    (check.next_token_loss, lambda x, ids: -F.cross_entropy(x[:-1], ids[1:]), "the loss is -ln p"),
    (check.next_token_loss, lambda x, ids: F.cross_entropy(x[:-1].softmax(-1), ids[1:]), "applied twice"),
    (check.next_token_loss, lambda x, ids: F.nll_loss(x[:-1], ids[1:]), "not normalised"),
    (check.baseline, lambda answers: 1 / len(set(answers)), "a blind guess hits 1 of"),
    (check.baseline, lambda answers: max(map(answers.count, answers)), "this is a count"),
    (check.baseline, lambda answers: 100 * max(map(answers.count, answers)) / len(answers), "in percent"),
    (check.baseline, lambda answers: answers.count(answers[-1]) / len(answers), "share of the last answer"),
    (check.baseline, lambda answers: answers[0], "should return a number"),
    (check.attend_in_blocks, lambda q, k, v, block: weigh(q @ k.mT, v), "not divided by √d_k"),
    (
        check.attend_in_blocks,
        lambda q, k, v, block: (q @ k.mT / sqrt(8)).exp() @ v / (q @ k.mT / sqrt(8)).exp().sum(-1, keepdim=True),
        "overflow",
    ),
    (check.bytes_of_weights, lambda n, heads, layers: n * n * heads * layers, "2 bytes"),
    (check.received, lambda q, k, lse, block: (q @ k.mT / 2).exp().sum(0), "lse is not subtracted"),
    (check.received, lambda q, k, lse, block: ((q @ k.mT / 2).softmax(-1)).mean(0), "received is the sum"),
    (check.entropy_from_lse, lambda s, lse: lse - s.mean(-1), "even weights here"),
    (check.previous_share, lambda w: w.diagonal(0, 1, 2).mean(-1), "one below the diagonal"),
    (
        check.induction_share,
        lambda w, ids: (w * (ids[:, None] == ids).tril(-1)).sum(-1)[:, (ids[:, None] == ids).tril(-1).any(-1)].mean(-1),
        "the token after it",
    ),
]


@pytest.mark.parametrize(("judge", "solution", "message"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_solution_is_told_what_is_wrong(judge, solution, message):
    with pytest.raises(WrongAnswer, match=message):
        judge(solution)


def test_vectors_and_matrices_may_be_lists():
    check.even_weights([[0.0, 0.0]] * 3)
    check.towards([1.0, 0.0, 0.0])
    check.two_readings(lambda target: [20.0 * (i == target) for i in range(6)])
    with pytest.raises(WrongAnswer, match="a vector of three numbers"):
        check.towards([1.0, 0.0])


def test_every_check_knows_a_wrong_solution():
    assert {judge.__name__ for judge, *_ in WRONG} == set(check.__all__)


def test_a_notebook_runs_in_jupyter(monkeypatch):
    """One is enough here; `make lessons` runs all of them."""
    nbclient = pytest.importorskip("nbclient", reason="the lessons extra is not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(Path(telescope.__file__).parents[1]))
    book = blocks.solved(json.loads((HOME / "lessons" / "01-weight-free.ipynb").read_text(encoding="utf-8")))
    done = nbclient.NotebookClient(nbformat.reads(json.dumps(book), as_version=4), timeout=120).execute()
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
