"""Tables: the numbers of surveys, recordings and heads as frames and as Parquet files."""

import sys

import pytest
import torch
from test_heads import IDS, MADE, recorded

import telescope as ts
from telescope.files import Names, frame


@pytest.fixture
def recording():
    return recorded("previous", "first", "same")


class TestWithPandas:
    @pytest.fixture(autouse=True)
    def _pandas(self):
        self.pandas = pytest.importorskip("pandas")

    def test_queries_of_a_survey(self):
        q = torch.randn(2, 3, 5, 4)
        seen = ts.survey(q, q, top=2, within=ts.window(2), segments=[0, 0, 1, 1, 1])
        table = seen.table()
        assert list(table.columns) == [
            "batch", "head", "query", "lse", "entropy", "peak", "peak_key", "largest_logit", "within", "share_0",
            "share_1",
        ]  # fmt: skip
        assert len(table) == 2 * 3 * 5
        row = table[(table.batch == 1) & (table["head"] == 2) & (table["query"] == 3)].iloc[0]
        assert row.entropy == float(seen.entropy[1, 2, 3])
        assert row.share_1 == float(seen.shares[1, 2, 3, 1])
        assert str(table.dtypes["query"]) == "int32"
        assert str(table.dtypes["entropy"]) == "float32"

    def test_keys_and_largest_weights_of_a_survey(self):
        q = torch.randn(1, 2, 5, 4)
        seen = ts.survey(q, q, ts.Attention(mask=ts.causal), top=3, largest=True, query_weights=torch.ones(2, 5))
        keys, top = seen.table("keys"), seen.table("top")
        assert list(keys.columns)[3:] == ["received", "largest", "largest_query", "weighted_0", "weighted_1"]
        assert keys.weighted_1.tolist() == pytest.approx(seen.received.flatten().tolist())
        assert len(top) == 2 * (1 + 2 + 3 + 3 + 3)  # the first queries see fewer than three keys
        assert top.key.min() == 0
        assert top.groupby(["head", "query"]).weight.max().tolist() == pytest.approx(
            seen.peak.weight.flatten().tolist()
        )

    def test_a_recording(self, recording):
        table = recording.table()
        assert set(table["layer"]) == {"attention"}
        assert str(table.dtypes["layer"]) == "category"
        assert len(table) == 3 * IDS.shape[1]
        tokens = recording.table("tokens")
        assert tokens.text.tolist()[:3] == ["The", " man", ","]
        heads = recording.table("heads").set_index("number")
        assert heads.loc[0, "kind"] == "previous"
        assert heads.loc[2, "same"] == pytest.approx(recording.heads().where(number=2)[0].same)

    def test_heads_with_segments(self, recording):
        table = recording.heads(segments={"start": (0, 4)}).table()
        assert table[table.number == 1]["segment start"].item() == pytest.approx(1.0, abs=1e-6)
        assert table[table.number == 1]["segment other"].item() == pytest.approx(0.0, abs=1e-6)

    def test_parquet_is_read_by_pandas_and_duckdb(self, recording, tmp_path):
        pytest.importorskip("pyarrow")
        recording.to_parquet(tmp_path / "tables")
        files = sorted(path.name for path in (tmp_path / "tables").iterdir())
        assert files == ["heads.parquet", "keys.parquet", "queries.parquet", "tokens.parquet", "top.parquet"]
        queries = self.pandas.read_parquet(tmp_path / "tables" / "queries.parquet")
        assert queries.entropy.tolist() == recording.table().entropy.tolist()
        assert set(queries["layer"]) == {"attention"}
        duckdb = pytest.importorskip("duckdb")
        found = duckdb.sql(f"select max(received) from '{tmp_path}/tables/keys.parquet' where head = 1").fetchall()
        assert found[0][0] == pytest.approx(float(recording["attention"].received[0, 1].max()))

    def test_other_files_are_left_alone(self, recording, tmp_path):
        pytest.importorskip("pyarrow")
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ValueError, match="holds other files than tables, so it is left alone; use a new folder"):
            recording.to_parquet(tmp_path)
        recording.to_parquet(tmp_path / "tables")
        with pytest.raises(ValueError, match=r"holds tables already; to_parquet\(..., replace=True\) replaces them"):
            recording.to_parquet(tmp_path / "tables")
        recording.to_parquet(tmp_path / "tables", replace=True)

    def test_effects(self):
        model = ts.models.GPT(ts.models.GPTConfig(vocabulary=8, d_model=8, blocks=1, heads=2)).eval()
        table = ts.effect(model, torch.tensor([[1, 2, 3]]), ts.mute.each(model)).table()
        assert table.edit.tolist()[:2] == ["as it is", "mute head 0 of blocks.0.self"]
        assert str(table.dtypes["kl"]) == "float64"

    def test_texts_and_half_precision(self):
        made = frame(
            {"name": Names.of(["a", "b", "a"]), "number": torch.ones(3, dtype=torch.bfloat16), "any": [1, 2, 3]}
        )
        assert made.name.tolist() == ["a", "b", "a"]
        assert str(made.number.dtype) == "float32"


def test_polars(recording):
    polars = pytest.importorskip("polars")
    table = recording.table("keys", library="polars")
    assert isinstance(table, polars.DataFrame)
    assert table.filter(polars.col("head") == 1)["received"].to_list() == pytest.approx(
        recording["attention"].received[0, 1].tolist()
    )


def test_unknown_tables_and_libraries(recording, monkeypatch):
    with pytest.raises(ValueError, match='a recording has no table of "key"; did you mean "keys"'):
        recording.table("key")
    with pytest.raises(ValueError, match='a survey has no table of "rows"'):
        recording["attention"].survey().table("rows")
    with pytest.raises(ValueError, match='there are no frames of "panda"; did you mean "pandas"'):
        recording.table(library="panda")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ValueError, match="this needs polars, which is not installed: pip install polars"):
        recording.table(library="polars")


# ------------------------------------------------------------------------------------------------- columns of heads


@pytest.mark.parametrize("keep", ["summaries", "queries-keys"])
def test_streaming_retrieval_and_logits(keep):
    heads = recorded(*MADE, keep=keep, **({"also": "streaming"} if keep == "summaries" else {})).heads()
    found = {name: heads.where(number=i)[0] for i, name in enumerate(MADE)}
    assert found["first"].streaming == pytest.approx(1.0)  # 12 tokens are all within the last 256
    assert found["induction"].retrieval == pytest.approx(1.0)  # what follows the earlier copy is what is written next
    assert found["first"].retrieval == pytest.approx(2 / 8)  # of 8 tokens that occurred before, 2 are the first token's
    assert found["same"].largest_logit == pytest.approx(40.0, abs=1e-4)
    assert found["mixed"].largest_logit == pytest.approx(0.0, abs=1e-4)


def test_sorting_and_filtering_by_segments(recording):
    heads = recording.heads(segments={"start": range(1), "rest": range(1, 12)})
    assert heads.sort("start")[0].number == 1
    assert [head.number for head in heads.where(start=0.9)] == [1]
    assert heads.sort("largest_logit")
    assert heads[0].segments["start"] + heads[0].segments["rest"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match='segments "a" and "b" overlap at token 2; a token belongs to one alone'):
        recording.heads(segments={"a": (0, 3), "b": (2, 4)})
    with pytest.raises(ValueError, match="segments has 3 numbers for a text of 12 tokens"):
        recording.heads(segments=[0, 1, 2])
    with pytest.raises(ValueError, match='segment "a" has token 12; the text has 12, numbered 0 to 11'):
        recording.heads(segments={"a": (3, 13)})
    with pytest.raises(ValueError, match='segment "a" holds no token'):
        recording.heads(segments={"a": (3, 3)})


def test_streaming_is_the_share_within_its_mask():
    torch.manual_seed(0)
    layer = ts.layers.MultiHeadAttention(16, 4, attention=ts.Attention(mask=ts.causal))
    x = torch.randn(1, 400, 16) * 3
    with ts.watch(layer, also="streaming") as recording, torch.no_grad():
        layer(x)
    with ts.watch(layer, keep="queries-keys") as kept, torch.no_grad():
        layer(x)
    call = kept["attention"].call
    weights = call.survey().rows(slice(None))
    key, query = torch.arange(400), torch.arange(400)[:, None]
    inside = (weights * ((key < 4) | (query - key < 256))).sum(-1)
    for each in (recording, kept):
        assert torch.allclose(each["attention"].call._streaming(), inside, atol=1e-5)
    expected = float(inside[0, 1, 1:].mean())
    assert recording.heads().where(number=1)[0].streaming == pytest.approx(expected, abs=1e-5)
    assert expected < 0.99


def test_an_unknown_addition_is_refused():
    with (
        pytest.raises(ValueError, match='there is no also="norm"; did you mean "norms"'),
        ts.watch(ts.layers.MultiHeadAttention(8, 2), also="norm"),
    ):
        pass
