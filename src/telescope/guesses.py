"""What others call things, and what is written here: read by errors about unknown names."""


def of_definition(call: str) -> dict[str, str]:
    """Return what others pass to a function beside queries and keys, and the definition that
    belongs there; `call` is how the function is called up to it.
    """

    def write(field: str) -> str:
        return f"{call}, ts.Attention({field}))"

    return {
        **dict.fromkeys(("mask", "block_mask"), f"it in the definition: {write('mask=ts.causal')}"),
        **dict.fromkeys(("causal", "is_causal"), write("mask=ts.causal")),
        "attn_mask": write("mask=ts.from_tensor(attn_mask)"),
        "key_padding_mask": write("mask=ts.padding(lengths)"),
        "window_size": write("mask=ts.causal & ts.window(size)"),
        **dict.fromkeys(("scale", "softmax_scale"), f"it in the definition: {write('scale=...')}"),
        "softcap": f"it in the definition: {write('softcap=...')}",
        "score_mod": write("bias=lambda query, key: ..."),
        "alibi_slopes": write("bias=ts.alibi(heads)"),
    }


OF_RECORDING = {
    **dict.fromkeys(
        ("pattern", "patterns", "attentions", "attention", "attention_weights", "weights"),
        'recording[layer].weights, for keep="queries-keys"',
    ),
    **dict.fromkeys(("layers", "attention_names"), "recording.names"),
    **dict.fromkeys(("plot", "show", "head_view", "heatmap"), "ts.explorer.show(recording)"),
    **dict.fromkeys(("rollout", "saliency", "attribution", "attribute"), "recording.sources(span)"),
    **dict.fromkeys(("induction", "induction_heads", "head_table", "kinds"), "recording.heads()"),
    **dict.fromkeys(("logit_lens",), "recording.lens()"),
    **dict.fromkeys(("logit_attribution", "dla", "direct_logit_attribution"), "recording.writes"),
    **dict.fromkeys(("to_pandas", "to_df", "dataframe", "df"), "recording.table()"),
    **dict.fromkeys(("to_polars",), 'recording.table(library="polars")'),
    **dict.fromkeys(
        ("cache", "activations", "hidden_states"), 'recording[layer].before, for keep="steps"'
    ),
    **dict.fromkeys(
        ("stack_head_results", "logit_attrs", "decompose_resid", "head_results"),
        'recording.writes(), for keep="steps"',
    ),
    **dict.fromkeys(("accumulated_resid", "logits"), 'recording.lens(), for keep="steps"'),
    **dict.fromkeys(("output", "outputs"), 'recording[layer].after, for keep="steps"'),
    **dict.fromkeys(("text", "texts", "words", "str_tokens"), "recording.decode(ids)"),
    **{
        name: f"recording[layer].{name}"
        for name in ("entropy", "top", "received", "peak", "trace", "survey", "before", "after")
    },
}
"""What others call parts of a recording, and ours."""
OF_WATCHED = {
    **dict.fromkeys(
        (
            "pattern",
            "hook_pattern",
            "attentions",
            "attention",
            "attention_weights",
            "attn",
            "attn_weights",
            "matrix",
            "probs",
        ),
        '.weights, for keep="queries-keys"',
    ),
    **dict.fromkeys(("map", "heatmap"), ".survey().map(rows, columns)"),
    **dict.fromkeys(("rows", "row"), ".survey().rows(i)"),
    **dict.fromkeys(("scores", "logits"), '.trace().scores, for keep="steps"'),
    **dict.fromkeys(
        ("z", "output", "context", "hook_z", "attn_output"), '.trace().context, for keep="steps"'
    ),
    **dict.fromkeys(("mean",), '.weights.mean(1), for keep="queries-keys"'),
    **dict.fromkeys(("argmax", "max"), ".peak.key and .peak.weight"),
    **dict.fromkeys(("shape", "size"), ".call.size"),
    **dict.fromkeys(("heads", "n_heads", "num_heads"), ".call.heads"),
    **dict.fromkeys(("q", "queries"), '.call.queries, for keep="queries-keys"'),
    **dict.fromkeys(("k", "keys"), '.call.keys, for keep="queries-keys"'),
    **dict.fromkeys(("v", "values"), '.call.values, for keep="steps"'),
    **dict.fromkeys(("resid_pre", "hidden_before"), '.before, for keep="steps"'),
    **dict.fromkeys(("resid_post", "hidden_after"), '.after, for keep="steps"'),
    **dict.fromkeys(("to_pandas", "to_df", "table"), ".survey().table()"),
    **dict.fromkeys(
        ("tokens", "words", "text"), ".call.key_ids, and recording.decode(ids) is text"
    ),
}
"""What others call parts of one watched attention, and ours."""
OF_TABLE = {
    **dict.fromkeys(("to_pandas", "to_df", "dataframe", "df", "to_frame"), ".table()"),
    **dict.fromkeys(("to_polars",), '.table(library="polars")'),
    **dict.fromkeys(("sort_values", "sort_by", "nlargest"), ".sort(column)"),
    **dict.fromkeys(("filter", "query", "select"), ".where(column=least)"),
    **dict.fromkeys(("head", "top", "best", "iloc", "tail"), "a slice: [:5]"),
    **dict.fromkeys(("loc", "groupby", "group_by", "values", "mean", "max", "min"), ".table()"),
}
"""What others call the methods of a table of heads, and ours."""


OF_HEAD = {
    **dict.fromkeys(("head", "index", "idx", "head_index"), ".number"),
    **dict.fromkeys(("name", "layer_name", "attention"), ".layer"),
    **dict.fromkeys(("score", "scores", "share", "shares"), "the share of a habit: .induction"),
    **dict.fromkeys(("induction_score", "prefix_matching"), ".induction"),
    **dict.fromkeys(("previous_token", "prev_token", "prev"), ".previous"),
    **dict.fromkeys(("bos", "first_token"), ".first"),
    **dict.fromkeys(("entropy",), ".spread, which is exp(entropy)"),
    **dict.fromkeys(("type", "role", "label"), ".kind"),
}
"""What others call the fields of a head, and ours."""
OF_SURVEY = {
    **dict.fromkeys(
        ("weights", "pattern", "attn", "attention_weights", "matrix", "probs"),
        ".rows(slice(None)), or .map(rows, cols) of a long text",
    ),
    **dict.fromkeys(("heatmap", "image"), ".map(rows, cols), or ts.plot.heatmap(survey)"),
    **dict.fromkeys(("argmax", "max"), ".peak.key and .peak.weight"),
    **dict.fromkeys(("topk", "top_k"), ".top.weights and .top.keys"),
    **dict.fromkeys(("column_sums", "importance", "mean", "sum"), ".received"),
    **dict.fromkeys(("logsumexp", "softmax_lse"), ".lse"),
    **dict.fromkeys(("output", "z"), ".context, of survey(values=...)"),
    **dict.fromkeys(("to_pandas", "to_df", "dataframe", "df"), ".table()"),
}
"""What others call the parts of a survey, and ours."""
OF_TRACE = {
    **dict.fromkeys(("pattern", "attn", "attention_weights", "attn_weights", "probs"), ".weights"),
    **dict.fromkeys(("output", "z", "attn_output", "result"), ".context"),
    **dict.fromkeys(("logits", "attn_scores", "qk"), ".scores"),
    **dict.fromkeys(("q",), ".queries"),
    **dict.fromkeys(("k",), ".keys"),
    **dict.fromkeys(("v",), ".values"),
}
"""What others call the steps of a trace, and ours."""
OF_SOURCES = {
    **dict.fromkeys(("to_pandas", "to_df", "dataframe", "df"), ".table()"),
    **dict.fromkeys(("top", "head", "sort", "ranked"), "a slice: [:5], the largest score first"),
    **dict.fromkeys(("plot", "show"), "ts.plot.sources(found)"),
    **dict.fromkeys(("attributions", "importance", "values"), ".scores, or .shares by segment"),
}
"""What others call the parts of sources, and ours."""
OF_ATLAS = {
    **dict.fromkeys(("to_pandas", "to_df", "dataframe", "df"), ".table()"),
    **dict.fromkeys(("statistics", "stats"), ".statistic(layer, head, name)"),
    **dict.fromkeys(("examples", "top_texts", "max_activating"), ".evidence(layer, head, habit)"),
    **dict.fromkeys(("sort", "where", "filter", "kinds"), ".heads()"),
    **dict.fromkeys(("plot", "scatter"), "ts.plot.scatter(atlas)"),
}
"""What others call the parts of an atlas, and ours."""
OF_PACKAGE = {
    **dict.fromkeys(
        (
            "from_pretrained",
            "hookedtransformer",
            "automodel",
            "automodelforcausallm",
            "languagemodel",
            "nnsight",
            "load_model",
            "pipeline",
        ),
        'ts.load("shakespeare") of a shipped model or a folder; any model of transformers, as its '
        "from_pretrained returns it, goes into ts.watch(model)",
    ),
    **dict.fromkeys(
        (
            "scaled_dot_product_attention",
            "sdpa",
            "flash_attention",
            "flash_attn_func",
            "flex_attention",
        ),
        "ts.attend(q, k, v, ts.Attention(mask=ts.causal))",
    ),
    **dict.fromkeys(
        ("multiheadattention", "selfattention", "crossattention"),
        "ts.layers.MultiHeadAttention(d_model, heads)",
    ),
    **dict.fromkeys(
        ("mask", "attn_mask", "attention_mask", "block_mask", "create_block_mask", "mask_mod"),
        "ts.causal, ts.window(size) and their combinations by & and |, or ts.from_tensor(seen)",
    ),
    **dict.fromkeys(("zero", "zero_out", "switch_off"), "ts.mute(layer, head)"),
    **dict.fromkeys(("causal_mask", "tril", "is_causal"), "ts.causal"),
    **dict.fromkeys(
        ("sliding_window", "local", "local_attention", "sliding"), "ts.causal & ts.window(size)"
    ),
    **dict.fromkeys(("padding_mask", "key_padding_mask"), "ts.padding(lengths)"),
    **dict.fromkeys(("score_mod", "bias"), "ts.Attention(bias=lambda query, key: ...)"),
    **dict.fromkeys(("scale", "softcap"), "a field of a definition: ts.Attention(scale=...)"),
    **dict.fromkeys(("dropout",), "ts.attend(q, k, v, attention, dropout=...)"),
    **dict.fromkeys(("generate", "beam", "beam_search"), "ts.decoding.generate(model, prompts)"),
    **dict.fromkeys(
        ("gpt", "gptconfig", "transformer", "encoder"), "ts.models.GPT, and others in ts.models"
    ),
    **dict.fromkeys(("heads", "head", "head_table"), "recording.heads()"),
    **dict.fromkeys(("sources",), "recording.sources(span)"),
    **dict.fromkeys(("save",), "recording.save(folder), which ts.open reads"),
    **dict.fromkeys(("explain",), "telescope explain on the command line, or ts.trace here"),
    **dict.fromkeys(("tokenizer", "tokenize"), "model.tokenizer, of a model that ts.load returns"),
    **dict.fromkeys(
        ("attention_scores", "get_attention_scores"),
        'recording[layer].trace().scores, for keep="steps"',
    ),
}
"""What others have in the package itself, in small letters, and ours."""
OF_KEEP = {
    **dict.fromkeys(("weights", "attention", "attentions", "pattern", "patterns"), "queries-keys"),
    **dict.fromkeys(("all", "everything", "True", "full", "cache", "activations"), "steps"),
    **dict.fromkeys(("survey", "statistics", "stats", "none", "False"), "summaries"),
}
"""What others would keep of a call, and the `keep` of `ts.watch`."""
OF_MEASURES = {
    **dict.fromkeys(("kl", "kl_div", "kl_divergence", "distribution"), 'measure="logits"'),
    **dict.fromkeys(("ce", "nll", "cross_entropy", "perplexity", "ppl"), 'measure="loss"'),
    **dict.fromkeys(("logit_diff", "logit_difference"), "tokens=[right], against=[wrong]"),
    **dict.fromkeys(("prob", "probability", "rank"), "tokens=[id]"),
}
"""What others would measure of an edit, and the arguments of `ts.effect`."""
OF_COMMANDS = {
    "version": "telescope --version prints it",
    "help": "telescope --help lists the commands",
    **dict.fromkeys(
        ("show", "view", "open", "explore", "explorer", "page", "ui", "web", "app", "visualize"),
        "telescope serve --open opens the page",
    ),
    **dict.fromkeys(
        ("mute", "ablate", "hide", "edit"),
        'telescope explain "Good morning." --mute encoder.0 switches heads off',
    ),
    **dict.fromkeys(
        ("record", "trace", "heads", "attention", "inspect"),
        'telescope watch --text "To be, or not to be" records every head',
    ),
    **dict.fromkeys(("complete", "chat", "sample"), "telescope generate continues a text"),
    **dict.fromkeys(("check", "info", "env", "engines"), "telescope doctor checks the engines"),
    **dict.fromkeys(("test", "eval", "score"), "telescope evaluate measures a trained model"),
    **dict.fromkeys(("init", "recipe"), "telescope new recipe writes one"),
}
"""What others call the commands, and ours."""
