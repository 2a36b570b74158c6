"""A folder of data with every corpus in it, each of a few lines."""

import gzip
import json

SENTENCES = [
    ("Two men stand by a fence.", "Zwei Männer stehen an einem Zaun."),
    ("A dog runs in the grass.", "Ein Hund läuft im Gras."),
    ("A woman in a red coat.", "Eine Frau in einem roten Mantel."),
    ("The girl plays the guitar.", "Das Mädchen spielt Gitarre."),
]
CHATS = [
    ("Amanda: I baked  cookies. Do you want some?\r\nJerry: Sure!", "Amanda baked cookies. Jerry wants some. "),
    ("Tom: Amanda, are you coming?\r\nAmanda: No, I am ill", "Amanda is ill, so Tom goes alone."),
    ("Jerry: hi\r\nTom: hi", "Jerry greets Tom."),
    ("Amanda: bye\r\nJerry: bye, Amanda", "Amanda and Jerry part."),
    ("Tom: who won?\r\nJerry: Tom did", "Tom won."),
]
CODES = ["#version: 0.2", "e i", "ei n</w>", "m a", "n n</w>", "ma nn</w>"]


def make(data):
    """Write all corpora below `data`; some files compressed, some not."""
    for kind, name, change in (("raw", "{}.{}", str), ("tok", "{}.lc.norm.tok.{}", _tokens)):
        for split in ("train", "val", "test_2016_flickr"):
            for side, language in enumerate(("en", "de")):
                lines = "".join(change(pair[side]) + "\n" for pair in SENTENCES)
                write(data / "multi30k" / kind / name.format(split, language), lines, packed=language == "de")
    write(data / "multi30k/bpe10k/code", "".join(f"{line}\n" for line in CODES))
    write(data / "tatoeba_de_en/deu.txt", "".join(f"{english}\t{german}\n" for english, german in tatoeba()))
    rows = [
        ("0ad", "synopsis", "strategy game", "Strategiespiel"),
        ("2vcard", "paragraph", "It is 2vcard.", "Es ist 2vcard."),
    ]
    records = [
        {"package": "a", "summary": "grep for trees", "document": "Ack is like grep.\n\nIt is for 99% of uses."}
    ] * 4
    chats = [{"id": str(i), "summary": summary, "dialogue": chat} for i, (chat, summary) in enumerate(CHATS)]
    for split in ("train", "valid"):
        write(data / f"debian_ddtp_en_de/{split}.tsv", "".join("\t".join(row) + "\n" for row in rows), packed=True)
        write(
            data / f"debian_synopsis/{split}.jsonl",
            "".join(json.dumps(record) + "\n" for record in records),
            packed=True,
        )
    for split, some in (("train", chats), ("val", chats[3:4]), ("test", chats[4:])):
        write(data / f"samsum/{split}.json", json.dumps(some), packed=True)
    write(data / "tiny_shakespeare/input.txt", "First Citizen:\nBefore we proceed, hear me speak.\n\n" * 120)
    for name in ("train.articles_permuted", "valid", "test"):
        write(data / f"wikitext2/{name}.txt", " = <unk> = \n\n a b c \n")
    return data


def tatoeba():
    """Return enough sentences for every split; the first has two translations."""
    numbered = [(f"I see {i} dogs.", f"Ich sehe {i} Hunde.") for i in range(300)]
    return [(numbered[0][0], "Null Hunde sehe ich."), *numbered, ("i see 0 dogs!", "ich sehe 0 Hunde!")]


def write(file, text, packed=False):
    file.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(text.encode()))
    else:
        file.write_bytes(text.encode())


def _tokens(sentence):
    return sentence.lower().replace(".", " .")
