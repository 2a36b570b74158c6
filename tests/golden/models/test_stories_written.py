"""stories260K writes its published text by `generate` and by `stream`."""

from test_stories import PUBLISHED

import telescope as ts
from support.needs import need_data


def test_200_tokens_are_the_published_text():
    model = ts.load(need_data("stories260K"))
    how = {"max_new_tokens": 200, "temperature": 0.0, "end": ()}
    start = [model.special.start]
    (line,) = ts.decoding.generate(model, [start], **how)
    assert (line.text, len(line.ids), line.why) == (PUBLISHED, 200, "length")
    assert "".join(token.text for token in ts.decoding.stream(model, start, **how)) == PUBLISHED
