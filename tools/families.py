"""Try every family of the installed transformers that a small random config builds, and write
docs/reference/families.md: python tools/families.py --rows FOLDER [--part 0/2]

Each model runs as it is and watched, with one text, image or sound; the numbers of every recorded
attention are compared with the weights that the eager model returns in float64. Then a head of
every attention is muted, and a key hidden. Rows are kept in a folder, so that an interrupted run goes
on where it stopped. With names of families alone, their rows are printed, and nothing is written.
"""

import copy
import json
import resource
import signal
import sys
import warnings
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import telescope as ts

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.truth import plain_attention  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "families.md"
LARGEST = 8_000_000  # parameters
LONGEST = 60  # seconds for a family
MEMORY = 8 * 2**30  # bytes
CLOSE = 1e-5
LARGEST_DIFFERENCE = 1e-4  # between outputs of eager and of the model's own attention
TOKENS = 12
# The tasks whose models are tried, the first that a family has.
TASKS = (
    ("CausalLM", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    ("Seq2SeqLM", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    ("SpeechSeq2Seq", modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
    ("MaskedLM", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    ("ImageClassification", modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    ("Model", modeling_auto.MODEL_MAPPING_NAMES),
)
# The fields of configs by what they are; any other field keeps its default.
SIZES: dict[int, tuple[str, ...]] = {
    64: ("vocab_size", "num_buckets", "encoder_vocab_size", "decoder_vocab_size"),
    128: ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx", "seq_length"),
    32: (
        *("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "d_embed"),
        *("word_embed_proj_dim", "rnn_hidden_size", "attention_hidden_size", "lru_width"),
        *("out_hidden_size", "projection_dim", "emb_dim", "model_dim"),
    ),
    48: (
        *("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner"),
        *("moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size"),
        *("shared_intermediate_size", "intermediate_dim", "mlp_dim", "hidden_dim"),
        *("dense_intermediate_size", "expert_ffn_hidden_size", "intermediate_size_mlp"),
    ),
    4: (
        *("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"),
        *("decoder_attention_heads", "num_local_experts", "num_experts", "n_routed_experts"),
        *("moe_num_experts", "patch_size", "linear_num_value_heads", "swa_num_attention_heads"),
    ),
    2: (
        *("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "num_experts_per_token"),
        *("encoder_layers", "decoder_layers", "n_layers", "n_layer", "num_layers", "depth"),
        *("num_encoder_layers", "num_decoder_layers", "moe_topk", "moe_k", "linear_num_key_heads"),
        *("num_key_value_groups_", "swa_num_key_value_heads", "n_head_kv", "mamba_n_groups"),
    ),
    1: ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_groups"),
    8: (
        *(
            "head_dim",
            "d_kv",
            "kv_channels",
            "attention_head_dim",
            "qk_rope_head_dim",
            "mamba_d_head",
        ),
        *("qk_nope_head_dim", "mamba_d_state", "linear_key_head_dim", "linear_value_head_dim"),
        *("swa_head_dim", "mamba_dt_rank", "index_head_dim", "ssm_state_size", "state_size"),
    ),
    12: ("v_head_dim",),
    16: ("q_lora_rank", "kv_lora_rank", "image_size", "img_size", "o_lora_rank"),
}
SIZE = {name: size for size, names in SIZES.items() for name in names}
LAYERS = 4  # of a model that mixes attention with other layers
# What a family demands beside.
MAMBA = {"num_hidden_layers": LAYERS, "use_mamba_kernels": False}
SPECIAL: dict[str, dict[str, Any]] = {
    "jamba": {**MAMBA, "attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1, 3], "num_hidden_layers": LAYERS, "mamba_n_heads": 8},
    "zamba": {**MAMBA, "n_mamba_heads": 2, "attention_head_dim": 16},
    "zamba2": {
        **MAMBA,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_ngroups": 1,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "kimi_linear": {"layer_types": ["full_attention", "linear_attention"] * 2},
    "qwen2_vl": {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "num_hidden_layers": 4,
        "mamba_n_heads": 8,
        "mamba_n_groups": 1,
    },
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 64},
}


# What explains a difference.
SINK = "eager returns weights from which the sink has not taken its share; it takes it later"
SCALE = "scores without a scale are so large here that float32 rounds them by this much"
NOTES = {
    "granite_swa": SINK,
    "granitemoe_swa": SINK,
    "embedding_gemma2": SCALE,
    "embedding_gemma2_text": SCALE,
}


class NotBuiltError(Exception):
    """A family that no small random config builds."""


def small(config: Any, kind: str) -> Any:
    """Return a config like the default of a family, with small sizes."""
    given: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            given[name] = small(value, value.model_type).to_dict()
        elif name in SIZE and isinstance(value, int) and not isinstance(value, bool):
            given[name] = SIZE[name]
    if "num_hidden_layers" in vars(config) or "num_hidden_layers" in config.attribute_map:
        given["num_hidden_layers"] = 2
    # A model that mixes kinds of layers has each of them, and the first again.
    kinds = list(dict.fromkeys(vars(config).get("layer_types") or ()))
    if len(kinds) > 1:
        types = [kinds[i % len(kinds)] for i in range(max(LAYERS, len(kinds)))]
        given |= {"layer_types": types, "num_hidden_layers": len(types)}
    # Latent attention has keys for each head.
    if "kv_lora_rank" in vars(config):
        given["num_key_value_heads"] = SIZE["num_attention_heads"]
    given |= SPECIAL.get(kind, {})
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        if getattr(config, name, None) is not None:
            given[name] = ("pad", "bos", "eos", "dec").index(name[:3]) % 3
    return type(config)(**given)


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise NotBuiltError(f"did not run in {seconds} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def build(kind: str) -> tuple[nn.Module, str]:
    """Return a model of a family with random numbers in every tensor, and the task it is made for."""
    for task, names in TASKS:
        if kind not in names:
            continue
        config = small(CONFIG_MAPPING[kind](), kind)
        auto = getattr(transformers, f"AutoModelFor{task}" if task != "Model" else "AutoModel")
        with torch.device("meta"):
            count = sum(one.numel() for one in auto.from_config(copy.deepcopy(config)).parameters())
        if count > LARGEST:
            raise NotBuiltError(f"has {count:,} parameters where it is small")
        torch.manual_seed(0)
        model = auto.from_config(config)
        return numbered(model), task
    raise NotBuiltError("has no model of its own")


@torch.no_grad()
def numbered(model: nn.Module) -> nn.Module:
    """Set every parameter to random numbers: a bias of zeros would hide a mistake."""
    random = torch.Generator().manual_seed(7)
    for name, tensor in model.named_parameters():
        if not tensor.is_floating_point() or "embed_positions" in name or "A_log" in name:
            continue
        spread = torch.randn(tensor.shape, generator=random)
        if tensor.ndim < 2:
            tensor.copy_(0.1 * spread + (1.0 if name.endswith("weight") else 0.0))
        else:
            tensor.copy_(0.7 * spread * min(tensor.shape[0], tensor[0].numel()) ** -0.5)
    return model.eval()


def inputs_of(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model reads, by the name of its main input."""
    random = torch.Generator().manual_seed(1)
    config: Any = model.config
    main = model.main_input_name
    text = torch.randint(3, 60, (2, TOKENS), generator=random)
    if main == "input_ids":
        inputs = {"input_ids": text}
    elif main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 16)
        side = side[0] if isinstance(side, list | tuple) else side
        inputs = {
            "pixel_values": torch.randn(
                2, getattr(vision, "num_channels", 3), side, side, generator=random
            )
        }
    elif main == "input_features":
        length = 2 * getattr(config, "max_source_positions", 20)
        inputs = {"input_features": torch.randn(2, config.num_mel_bins, length, generator=random)}
    elif main == "input_values":
        inputs = {"input_values": torch.randn(2, 4000, generator=random)}
    else:
        raise NotBuiltError(f"reads {main}")
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = text[:, :7]
    return inputs


def run(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> Any:
    torch.manual_seed(3)  # some models draw what they read
    return model(**inputs, return_dict=True, **options)


def first_tensor(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if isinstance(output, dict) else output[0]
    return output


# ---------------------------------------------------------------------------------------- the checks


@dataclass(frozen=True)
class Row:
    """What was found of a family."""

    family: str
    task: str = ""
    watched: str = ""
    numbers: str = ""
    edited: str = ""
    others: str = ""
    """The layers that are no softmax attention, or why the family was refused."""


@torch.no_grad()
def try_family(kind: str) -> Row:
    """Return what is found of a family."""
    try:
        with time_limit(LONGEST):
            model, task = build(kind)
            inputs = inputs_of(model)
            plain = first_tensor(run(model, inputs))
            if not plain.isfinite().all():
                raise NotBuiltError("computes NaN with random weights")
    except Exception as problem:
        raise NotBuiltError(f"{type(problem).__name__}: {problem}") from problem
    row = Row(kind, task)
    with time_limit(LONGEST):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with ts.watch(model) as recording:
                    watched = first_tensor(run(model, inputs))
        except ValueError as problem:
            return replace(row, watched="refused", others=str(problem))
    if not torch.equal(plain, watched):
        return replace(row, watched="**other outputs**")
    calls = {name: one for name, one in recording.items() if one.calls}
    row = replace(
        row,
        watched=f"{len(calls)} attentions" if calls else "none",
        others=describe_left_out(model, recording),
    )
    if not calls:
        return row
    numbers = compare(model, inputs, calls)
    if not numbers[0].isdigit():
        numbers = compare_with_torch(model, inputs, recording) or numbers
    row = replace(row, numbers=numbers)
    return replace(row, edited=edit(model, inputs, plain))


def describe_left_out(model: nn.Module, recording: ts.Recording) -> str:
    """Return the classes of the attentions that were left out, and of the layers without one."""
    parts = []
    for what, names in (
        ("not recorded", recording.left_out),
        ("without softmax attention", recording.other_layers),
    ):
        kinds = Counter(type(model.get_submodule(name)).__name__ for name in names)
        if kinds:
            parts.append(f"{what}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
    return "; ".join(parts)


def compare(model: nn.Module, inputs: dict[str, Tensor], calls: Any) -> str:
    """Return how far the recorded numbers are from the weights of the eager model in float64."""
    output = None
    note = ""
    # Some layers beside the attentions cast to float32, and then run in no other type.
    for kind in (torch.float64, torch.float32):
        try:
            twin = copy.deepcopy(model).to(kind)
            twin.set_attn_implementation("eager")
            given = {
                name: one.to(kind) if one.is_floating_point() else one
                for name, one in inputs.items()
            }
            output = run(twin, given, output_attentions=True)
            break
        except Exception:
            note = " (of float32)"
    if output is None:
        return "not compared: eager returns no weights"
    found = [
        one
        for name in ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions")
        for one in (getattr(output, name, None) or ())
        if isinstance(one, Tensor)
    ]
    if len(found) < len(calls):
        return f"not compared: eager returned {len(found)}"
    own = first_tensor(run(copy.deepcopy(model).to(kind), given))
    apart_by = (first_tensor(output) - own).abs().max() / own.abs().max()
    if float(apart_by) > LARGEST_DIFFERENCE:
        return "not compared: eager computes other outputs"
    # The order of decoders and their cross-attentions differs: match by shape and nearness.
    errors = []
    left = list(found)
    for one in calls.values():
        received = one.received.double()
        apart = [
            (float((received - weights.sum(2)).abs().max() / weights.sum(2).abs().max()), i)
            for i, weights in enumerate(left)
            if weights.ndim == 4 and received.shape == weights.sum(2).shape
        ]
        if not apart:
            return "not compared: other shapes"
        error, i = min(apart)
        own = left.pop(i)
        entropy = torch.special.entr(own).sum(-1)
        apart_by = (one.entropy - entropy).abs().max() / entropy.abs().max().clamp(min=1e-9)
        errors += [error, float(apart_by)]
    worst = f"{max(errors):.0e}{note}"
    return worst if max(errors) <= CLOSE else f"**{worst}**"


def compare_with_torch(
    model: nn.Module, inputs: dict[str, Tensor], recording: ts.Recording
) -> str | None:
    """Return how far the recorded numbers are from torch's attention written out in float64; None
    if the model does not call it, or more than once for an attention.
    """
    with plain_attention(model, only_looks=True) as calls:
        run(model, inputs)
    recorded = {name: one for name, one in recording.items() if one.calls}
    if set(recorded) - set(calls) or any(len(one.calls) > 1 for one in recorded.values()):
        return None
    worst = 0.0
    for name, one in recorded.items():
        received = calls[name].weights.sum(2)
        worst = max(worst, float((one.received - received).abs().max() / received.abs().max()))
    return f"{worst:.0e} (of torch)" if worst <= CLOSE else f"**{worst:.0e}** (of torch)"


def edit(model: nn.Module, inputs: dict[str, Tensor], plain: Tensor) -> str:
    """Return which edits change what the model returns, and leave it as it was."""
    found = []
    for name, one in (("mute", ts.mute(heads=[0])), ("hide", ts.hide([1]))):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with ts.edit(model, one):
                    edited = first_tensor(run(model, inputs))
        except (ValueError, RuntimeError) as problem:
            found.append(f"{name} refused: {str(problem)[:80]}")
            continue
        found.append(name if not torch.equal(edited, plain) else f"{name} changed nothing")
    if not torch.equal(first_tensor(run(model, inputs)), plain):
        return "**not restored**"
    return ", ".join(found)


def families() -> list[str]:
    """Return every family that has a model for one of the tasks."""
    return sorted({kind for _, names in TASKS for kind in names})


def write(rows: list[Row], missing: list[str]) -> None:
    """Write the page."""
    seen = [row for row in rows if row.watched not in ("none", "refused")]
    refused = [row for row in rows if row.watched in ("none", "refused")]
    lines = [
        HEAD.format(
            version=transformers.__version__,
            tried=len(rows) + len(missing),
            built=len(rows),
            watched=len(seen),
        ),
        "| family | task | watched | off by | edited | beside |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{row.family}` | {row.task} | {row.watched} | {row.numbers} | {row.edited} |"
            f" {'; '.join(filter(None, (row.others, NOTES.get(row.family))))} |"
            for row in seen
        ),
        "",
        "## Refused, or without an attention",
        "",
        "| family | task | why |",
        "|---|---|---|",
        *(
            f"| `{row.family}` | {row.task} | {row.others or 'no attention ran'} |"
            for row in refused
        ),
        "",
        "## Not built",
        "",
        "No small random config was found for these; nothing is said of them.",
        "",
        fill(", ".join(f"`{name}`" for name in missing) + ".", 120, break_on_hyphens=False),
        "",
    ]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


HEAD = """# Families of transformers

Written by `python tools/families.py`, with transformers {version}. {tried} families have a model for one of six tasks;
{built} were built from a small config with random weights, and {watched} of them are watched. Every one computed the
same bits as unwatched.

*off by*: the largest relative difference between what was recorded (the weight that each key receives, the entropy of
each query) in float32 on the model's own attention, and the weights of the eager model in float64, or in float32 where
the model runs in no other type. "of torch": where eager returns no weights, or others than its own attention has, they
are those of torch's attention written out in float64. "not compared" is said where neither could be. In
bold: above 1e-5; the last column says why.
*edited*: `ts.mute` of head 0 and `ts.hide` of a key, in every layer, changed the output, and the model was as before
afterwards.
"""


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*")
    parser.add_argument("--part", default="0/1", help="0/2 is the first half of the families")
    parser.add_argument("--rows", type=Path, help="a folder for the rows of parts")
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity(50)
    torch.set_num_threads(1)
    # A family that takes more than it is given is one that was not built.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    part, of = map(int, given.part.split("/"))
    folder: Path | None = given.rows
    for kind in given.family or families()[part::of]:
        if folder is not None and (folder / kind).exists():
            continue
        row = found(kind)
        print(row, flush=True)
        if folder is not None:
            folder.mkdir(exist_ok=True)
            (folder / kind).write_text(json.dumps(asdict(row)), encoding="utf-8")
    if folder is not None:
        made = [Row(**json.loads(one.read_text("utf-8"))) for one in sorted(folder.iterdir())]
        write([row for row in made if row.task], [row.family for row in made if not row.task])


def found(kind: str) -> Row:
    """Return the row of a family; without a task where it was not built."""
    try:
        return try_family(kind)
    except NotBuiltError as problem:
        return Row(kind, others=str(problem)[:200])
    except Exception as problem:
        if "allocate memory" in str(problem):
            return Row(kind, others="takes more memory than it is given")
        return Row(kind, "?", f"**{type(problem).__name__}**", others=str(problem)[:200])


if __name__ == "__main__":
    main()
