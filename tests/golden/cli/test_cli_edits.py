"""telescope translate, generate and explain with --mute and --hide, on the shipped models."""

import json

SENTENCE = "The man saw the astronomer with a telescope"


def output_of(command, *arguments):
    code, printed, complaint = command(*arguments)
    assert (code, complaint) == (0, "")
    return printed


def test_the_edited_translation_is_beside_the_unedited(command):
    printed = output_of(command, "translate", SENTENCE, "--hide", "telescope", "--mute", "decoder.1.cross:2")
    assert printed.splitlines() == [
        "as it is  Der Mann sah den Astronomen mit einem Teleskop",
        "edited    Der Mann sah den Astronomen mit einem Astronomen",
    ]


def test_json_holds_both(command):
    result = json.loads(output_of(command, "translate", SENTENCE, "--mute", "decoder.*.cross", "--json"))
    assert result["text"] == "Der Mann sah den Astronomen mit einem Teleskop"
    assert result["edited"]["text"] != result["text"]
    assert result["edits"] == ["mute every head of decoder.*.cross"]


def test_explain_shows_the_edited_steps(command):
    plain = output_of(command, "explain", SENTENCE).splitlines()
    printed = output_of(command, "explain", SENTENCE, "--hide", "telescope").splitlines()
    assert printed[:3] == [
        "as it is  Der Mann sah den Astronomen mit einem Teleskop",
        "edited    Der Mann sah den Astronomen mit einem Astronomen",
        'hide "telescope" from every query in every layer',
    ]
    result = json.loads(output_of(command, "explain", SENTENCE, "--hide", "telescope", "--json"))
    assert result["edits"] == ['hide "telescope" from every query in every layer']
    columns = result["attentions"][0]["column_words"]
    hidden = columns.index("telescope")
    weights = result["attentions"][0]["word_weights"]
    assert all(row[hidden] == 0.0 for head in weights for row in head)
    assert plain[1] == result["as_it_is"]


def test_generate_writes_both_with_one_seed(command):
    options = ("--max-new-tokens", "12", "--seed", "3")
    plain = output_of(command, "generate", "ROMEO:", *options)
    printed = output_of(command, "generate", "ROMEO:", "--mute", "blocks.0.self:1", *options)
    first, _, second = printed.partition("edited    ")
    assert first == f"as it is  {plain}"
    assert second.startswith("ROMEO:")
    assert second != plain


def test_one_sentence_for_a_wrong_edit(command):
    for arguments, message in (
        (["translate", "A telescope.", "--hide", "telescop"], 'holds "telescop"; did you mean "telescope"?'),
        (["translate", "A telescope.", "--mute", "decoder.1.crss:2"], 'did you mean "decoder.1.cross"?'),
        (["translate", "A telescope.", "--mute", "decoder.1.cross:x"], "is no head; such as --mute decoder.1.cross:2"),
        (["explain", "--hide", "journey"], "edit a sentence of your own"),
    ):
        code, printed, complaint = command(*arguments)
        assert (code, printed) == (2, "")
        assert message in complaint
        assert len(complaint.splitlines()) == 1
