"""A small class on one server, as a process: six browsers, then clients that draw nothing."""

from threading import Thread

import pytest
from benchmarks import classroom

from support import writers


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    made = {"learnt": writers.learnt(), "gpt": writers.gpt(max_positions=128), "small": writers.translator()}
    for name, model in made.items():
        model.save(folder / name)
    return tuple(str(folder / name) for name in made)


@pytest.fixture(scope="module")
def server(models):
    arguments = [part for model in models for part in ("--model", model)]
    with classroom.serving(*arguments, models=models) as server:
        yield server


@pytest.mark.parametrize("hold", [classroom.hold, classroom.hold_without_pages])
def test_all_are_served_and_each_sees_its_own(server, models, hold):
    plan = classroom.Plan(6, 2, 0.5, models)
    lessons = []
    # In a thread: the other tests' browser has an event loop in this one.
    thread = Thread(target=lambda: lessons.append(hold(server, plan)))
    thread.start()
    thread.join(300)
    (lesson,) = lessons
    assert lesson.problems == []
    assert len(lesson.times) == plan.students * plan.sentences
    assert 0 < lesson.quantile(0.5) <= lesson.quantile(0.95)
    assert lesson.mib < 1024


def test_a_list_of_another_is_found(server, models, monkeypatch):
    """Twelve sentences of one browser: the check that the lists are apart can fail."""
    monkeypatch.setattr(classroom, "BROWSER", "one-browser-for-all-of-them")
    lesson = classroom.hold_without_pages(server, classroom.Plan(3, 2, 0.1, models))
    assert len(lesson.problems) > 0
    assert "has another's list" in lesson.problems[0]
