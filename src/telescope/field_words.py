"""The field's words for what Telescope does, and our calls: read by errors about unknown names, and
by the glossary.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .guesses import OF_PACKAGE
from .words import closest_name


class FieldWord(NamedTuple):
    """One word of the field."""

    word: str
    meaning: str
    """What it is, in a sentence."""
    call: str
    """What it is here: a sentence about our calls, each in backquotes."""
    paper: str
    """Where it was named or first done."""
    names: tuple[str, ...] = ()
    """What others call the function that does it."""


WORDS = (
    FieldWord(
        "ablation",
        "Switch a part of a model off, and see what gets worse.",
        "`ts.mute` (a head) or `ts.hide` (keys)",
        "Michel et al. 2019; Voita et al. 2019",
        (
            "ablate",
            "ablation",
            "zero_ablation",
            "ablate_head",
            "ablate_heads",
            "prune",
            "mask_head",
            "head_mask",
            "prune_heads",
        ),
    ),
    FieldWord(
        "mean ablation",
        "Replace what a head writes by its mean, so that later layers see nothing unusual.",
        '`ts.mute(layer, head, by="mean")`',
        "Wang et al. 2022",
        ("mean_ablation", "mean_ablate", "mean"),
    ),
    FieldWord(
        "attention knock-out",
        "Forbid some queries to see some keys, and see what the model no longer knows.",
        "`ts.hide(keys, queries=...)`",
        "Geva et al. 2023",
        ("knockout", "knock_out", "attention_knockout", "block_attention"),
    ),
    FieldWord(
        "head importance",
        "How much worse a model gets without each of its heads.",
        '`ts.effect(model, inputs, ts.mute.each(model), "loss")`',
        "Michel et al. 2019",
        ("head_importance", "importance", "ablate_all", "head_importances"),
    ),
    FieldWord(
        "activation patching",
        "Put what a model computed of one text into its run on another, and see which part carries "
        "the difference. Also causal tracing, or interchange intervention.",
        "`ts.patch` between texts, or `ts.frozen` for the pattern of another run",
        "Vig et al. 2020; Meng et al. 2022",
        (
            "patching",
            "activation_patching",
            "causal_tracing",
            "interchange_intervention",
            "path_patching",
            "patch_activations",
            "intervene",
            "intervention",
        ),
    ),
    FieldWord(
        "path patching",
        "Patch what one head passes to another, and nothing else.",
        "`ts.patch` for what a head writes; how heads compose by their weights is "
        "`ts.circuits(model).composition`",
        "Wang et al. 2022; Goldowsky-Dill et al. 2023",
    ),
    FieldWord(
        "attribution patching",
        "Estimate the effect of every patch or ablation at once from one gradient.",
        '`ts.effect(model, inputs, edits, how="gradient")`',
        "Nanda 2023; Syed et al. 2023",
        ("attribution_patching", "eap", "edge_attribution_patching"),
    ),
    FieldWord(
        "frozen attention",
        "Run a model with the attention pattern of another run.",
        "`ts.frozen`",
        "Elhage et al. 2021",
        ("freeze", "freeze_attention", "freeze_pattern"),
    ),
    FieldWord(
        "steering",
        "Change a running model so that it writes something else: here, some tokens count more.",
        "`ts.boost` (keys) or `ts.mute(..., times=2)` (a head)",
        "Turner et al. 2023; Zhang et al. 2023 (PASTA)",
        ("steer", "steering", "steer_attention", "pasta"),
    ),
    FieldWord(
        "attention pattern",
        "The weights that each query gives to each key. Also attention map, or attention matrix.",
        "`recording[layer].weights` of a short text, and `recording[layer].survey().map(256, 256)` "
        "of a long one",
        "Bahdanau et al. 2015; Elhage et al. 2021",
        (
            "pattern",
            "patterns",
            "attention_pattern",
            "attention_patterns",
            "attention_map",
            "attention_maps",
            "attention_weights",
            "attentions",
            "get_attention",
            "output_attentions",
        ),
    ),
    FieldWord(
        "activation cache",
        "Everything that a model computed of a text, kept by the names of its parts.",
        '`ts.watch(model, keep="steps")`',
        "Nanda and Bloom 2022 (TransformerLens)",
        (
            "run_with_cache",
            "activation_cache",
            "cache",
            "capture",
            "hook",
            "hooks",
            "add_hook",
            "register_forward_hook",
            "trace_model",
            "record",
        ),
    ),
    FieldWord(
        "score of one edge",
        "Why a query attends to a key: the score, divided among those who wrote query and key.",
        "`recording.why(layer, head, query, key)`",
        "Elhage et al. 2021",
        ("why", "explain_score", "score_attribution"),
    ),
    FieldWord(
        "direct logit attribution",
        "How much each head adds to the logit of a token, straight through the unembedding.",
        "`recording.writes`",
        "Elhage et al. 2021; Wang et al. 2022",
        ("direct_logit_attribution", "dla", "logit_attribution", "logit_attrs"),
    ),
    FieldWord(
        "logit lens",
        "Read the residual stream of a middle layer with the unembedding.",
        "`recording.lens()`",
        "nostalgebraist 2020",
        ("logit_lens", "lens", "tuned_lens"),
    ),
    FieldWord(
        "QK circuit",
        "W_qᵀ W_k of a head: which content looks for which.",
        "`ts.circuits(model)[layer, head].qk`",
        "Elhage et al. 2021",
        ("qk", "qk_circuit", "svd"),
    ),
    FieldWord(
        "OV circuit",
        "W_O W_v of a head: what it writes for what it reads.",
        "`ts.circuits(model)[layer, head].ov`",
        "Elhage et al. 2021",
        ("ov", "ov_circuit", "singular_directions"),
    ),
    FieldWord(
        "copying score",
        "Whether a token that a head reads becomes likelier: the eigenvalues of W_U W_O W_v W_E.",
        "`ts.circuits(model)[layer, head].copying`",
        "Elhage et al. 2021",
        ("copying", "copying_score", "ov_copying", "eigenvalue_copying"),
    ),
    FieldWord(
        "composition",
        "How much of what one head writes is read by the queries, keys or values of a later one.",
        '`ts.circuits(model).composition(one, other, "k")`',
        "Elhage et al. 2021",
        (
            "composition",
            "composition_score",
            "composition_scores",
            "k_composition",
            "virtual_heads",
        ),
    ),
    FieldWord(
        "previous-token head",
        "A head that attends to the position before.",
        "`recording.heads().where(previous=0.4)`; by weights, "
        "`ts.circuits(model)[layer, head].previous_token`",
        "Voita et al. 2019; Elhage et al. 2021",
        ("previous_token_heads", "previous_token"),
    ),
    FieldWord(
        "induction head",
        "A head that attends to what followed earlier occurrences of the token.",
        "`recording.heads().where(induction=0.4)`; by weights, "
        "`ts.circuits(model)[layer, head].induction`",
        "Elhage et al. 2021; Olsson et al. 2022",
        ("induction", "induction_heads", "induction_score", "find_induction_heads", "head_scores"),
    ),
    FieldWord(
        "retrieval head",
        "A head that copies from far back what the model writes next.",
        '`recording.heads().sort("retrieval")`',
        "Wu et al. 2024",
        ("retrieval", "retrieval_heads", "retrieval_score"),
    ),
    FieldWord(
        "attention sink",
        "A token that takes the weight which a head has no use for, mostly the first.",
        '`recording.heads().sort("first")`, and its column `sink` for other tokens',
        "Xiao et al. 2023",
        ("sink", "sinks", "attention_sink", "attention_sinks"),
    ),
    FieldWord(
        "attention entropy",
        "How many keys a query spreads its weight over.",
        "`recording[layer].entropy`; the column `spread` of `recording.heads()` is its exponential",
        "Ghader and Monz 2017; Clark et al. 2019",
        ("entropy", "attention_entropy"),
    ),
    FieldWord(
        "attention rollout",
        "Weights multiplied through all layers, with the residual connections.",
        '`recording.sources(span, "rollout")`',
        "Abnar and Zuidema 2020",
        ("rollout", "attention_rollout", "attention_flow"),
    ),
    FieldWord(
        "norm-based attention",
        "Weights times the size of what they carry, ‖W_O v‖.",
        '`ts.watch(model, also="norms")`, then `recording.sources(span, "carried")`',
        "Kobayashi et al. 2020",
        ("value_weighted", "norm_based", "value_weighted_attention"),
    ),
    FieldWord(
        "saliency",
        "The gradient of an answer with respect to parts of its context, here times the weight.",
        '`ts.watch(model, also="gradients")`, then `recording.sources(span, "gradient")`',
        "Simonyan et al. 2014",
        (
            "saliency",
            "saliency_map",
            "grad_times_attention",
            "gradient",
            "integrated_gradients",
            "integratedgradients",
            "layerintegratedgradients",
            "inputxgradient",
        ),
    ),
    FieldWord(
        "context attribution",
        "Which parts of the context an answer comes from, by leaving each out.",
        '`recording.sources(span, "hidden", model=model)`',
        "Cohen-Wang et al. 2024 (ContextCite)",
        (
            "attribution",
            "attribute",
            "context_attribution",
            "context_cite",
            "attributions",
            "llmattribution",
            "featureablation",
        ),
    ),
    FieldWord(
        "word alignment",
        "Which source words, or which sound, a cross-attention reads while it writes a word.",
        "`ts.alignments(recording)`",
        "Bahdanau et al. 2015",
        ("alignment", "align", "word_alignment", "dtw"),
    ),
    FieldWord(
        "cache eviction",
        "Drop the keys that get the least weight, so that the cache stays small.",
        "`ts.press`",
        "Zhang et al. 2023 (H2O)",
        ("evict", "eviction", "kv_press", "kvpress", "h2o", "compress"),
    ),
    FieldWord(
        "attention visualisation",
        "Lines or colours for the weights between tokens.",
        "`ts.explorer.show(recording)` or `ts.plot`",
        "Vig 2019 (BertViz)",
        (
            "visualize",
            "visualise",
            "show",
            "view",
            "head_view",
            "model_view",
            "neuron_view",
            "heatmap",
        ),
    ),
)


def missing_name(name: str, known: Iterable[str]) -> str:
    """Return the error about a name that the package does not have."""
    said = f'telescope has no "{name}"'
    wanted = name.lower()
    for one in WORDS:
        if wanted in one.names:
            return f"{said}; what others call {one.word} is {_plain(one.call)}"
    if wanted in OF_PACKAGE:
        return f"{said}; what others call {name} is {OF_PACKAGE[wanted]}"
    closest = closest_name(name, known)
    if closest is None:
        return f"{said}; dir(telescope) lists what it has"
    return f'{said}; did you mean "{closest}"?'


class FieldNames:
    """A base class whose error about an unknown attribute names what others call so."""

    _theirs: ClassVar[Mapping[str, str]] = {}
    """What others call the parts of this class, and ours."""

    def _ours(self, name: str) -> str | None:
        """Return what is written here for a name of others, if that is known."""
        return self._theirs.get(name)

    # Hidden from type checkers, which would take any attribute to be there.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise the error. Python calls this only for what is not found otherwise."""
            kind = type(self)
            # A property that raised an AttributeError of its own raises it again.
            if hasattr(kind, name):
                return object.__getattribute__(self, name)
            article = "an" if kind.__name__[0] in "AEIO" else "a"
            said = f"{article} {kind.__name__} has no attribute {name!r}"
            # Copies, pickles and notebooks ask for names with an underscore, and read no sentence.
            if name.startswith("_"):
                raise AttributeError(said)
            ours = self._ours(name)
            if ours:
                raise AttributeError(f"{said}; what others call {name} is {ours}")
            closest = closest_name(name, [one for one in dir(kind) if not one.startswith("_")])
            raise AttributeError(f'{said}; did you mean "{closest}"?' if closest else said)


def glossary() -> list[str]:
    """Return the lines of the glossary's table, in the order of the words."""
    lines = ["| word | what it is | here | named in |", "|---|---|---|---|"]
    for one in sorted(WORDS, key=lambda one: one.word.lower()):
        lines.append(f"| {one.word} | {one.meaning} | {one.call} | {one.paper} |")
    return lines


def _plain(call: str) -> str:
    return call.replace("`", "")
