"""The configuration of a training run: typed sections, TOML in, dotted overrides on top, unknown keys refused.

    config = load_config("configs/shakespeare.toml", ["--train.steps", "200"])

The docstring below a field is its help on the command line.
"""

import contextlib
import dataclasses
import difflib
import json
import tomllib
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oarlock.attention.context_parallel import LEAST_CHUNK
from oarlock.memory import SUFFIXES
from oarlock.memory.offload import parse_budget
from oarlock.train.data.corpus import CorpusConfig
from oarlock.train.limits import check_limits

_PATHS = (
    "model.directory",
    "model.config",
    "data.corpus",
    "data.validation",
    "data.tokenizer",
    "data.chat_template",
    "data.cache",
    "train.out",
    "memory.record",
    "memory.tier",
    "compile.cache",
)

_COMMAND_LINE = "command line"
_HOW_TO_LIST = "(oarlock train CONFIG.toml --options lists them all)"


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What is trained: a new decoder from the fields below, or from a config.json, or an existing folder."""

    directory: str = ""
    """Hugging Face folder to continue from (config.json, safetensors, tokenizer.json); replaces the fields below."""
    config: str = ""
    """A config.json to build a new, randomly initialised model from; replaces the fields below."""
    family: Literal[
        "llama",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "ernie4_5",
        "ernie4_5_moe",
        "dots1",
        "deepseek_v3",
        "gpt_oss",
    ] = "qwen3"
    """Architecture, named as `model_type` in a Hugging Face config.json."""
    hidden_size: int = 256
    """Width E of the residual stream."""
    intermediate_size: int = 704
    """Width of the SwiGLU layer."""
    num_hidden_layers: int = 4
    """Number of decoder blocks."""
    num_attention_heads: int = 4
    """Number of query heads."""
    num_key_value_heads: int = 4
    """Number of key and value heads; divides num_attention_heads (deepseek_v3 has no such number)."""
    head_dim: int = 64
    """Width of a head (deepseek_v3: of a value, and of the part of queries and keys without RoPE)."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding."""
    tie_word_embeddings: bool = True
    """Share the input embedding with the output projection."""
    sliding_window: int = 0
    """Keys a query sees, itself included; 0 = all (qwen2, qwen3, dots1; gpt_oss: in every other layer, 0 = 128)."""
    kv_lora_rank: int = 128
    """deepseek_v3: width of the latent that keys and values are made from."""
    q_lora_rank: int = 0
    """deepseek_v3: width of the latent that queries are made from; 0 = none."""
    qk_rope_head_dim: int = 32
    """deepseek_v3: width of the part of queries and keys with RoPE."""
    num_experts: int = 0
    """Experts of a mixture-of-experts family; 0 = 8."""
    num_experts_per_tok: int = 2
    """Experts that each token is sent to."""
    num_shared_experts: int = 1
    """Experts that see every token (ernie4_5_moe, dots1, deepseek_v3)."""
    moe_intermediate_size: int = 256
    """Width of one expert."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(CorpusConfig):
    """What it is trained on."""

    sequence_length: int = 2048
    """Tokens S per sequence; documents are packed into sequences and never see each other."""
    chat_template: str = ""
    """sft and dpo: Jinja file in place of the model's own chat template."""
    cache: str = ".cache/oarlock"
    """Folder of tokenised corpora, keyed by content."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the weights move."""

    name: Literal["adamw", "muon"] = "muon"
    """adamw for all weights, or muon for the blocks' matrices with adamw for the rest."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon, in units of the spectral norm of an update."""
    beta1: float = 0.9
    """AdamW: decay of the first moment."""
    beta2: float = 0.95
    """AdamW: decay of the second moment."""
    epsilon: float = 1e-8
    """AdamW: added to the root of the second moment."""
    momentum: float = 0.95
    """Muon: Nesterov momentum."""
    weight_decay: float = 0.0
    """Decoupled decay of matrices (not of norms, biases and embeddings)."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 = do not clip."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run, as a factor of its peak."""

    kind: Literal["wsd", "cosine", "constant"] = "wsd"
    """wsd: warm-up, stable, linear decay; cosine: warm-up then half a cosine."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    decay_share: float = 0.5
    """wsd: share of the steps spent decaying."""
    final_factor: float = 0.0
    """Factor that the decay ends in; the last step lies one step before its end."""


@dataclass(frozen=True, kw_only=True)
class TrainSection:
    """The loop."""

    task: Literal["pretrain", "sft", "dpo"] = "pretrain"
    """What is learned: pretrain (all text of documents), sft (the assistant's answers in conversations), dpo (which of
    two answers is better)."""
    out: str = "runs/default"
    """Folder of the run: config.toml, metrics.jsonl, checkpoints, hf, report.html, tb."""
    steps: int = 0
    """Optimizer steps; 0 = as many as `flops` pays for."""
    flops: float = 0.0
    """Budget in model FLOPs (forward and backward) when steps is 0."""
    batch_size: int = 1
    """Sequences per rank and micro-batch."""
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    balance_rate: float = 1e-3
    """Mixture of experts: step of the router's balancing bias after each optimizer step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """bf16: matmuls under autocast, weights and optimizer state stay fp32."""
    device: str = "auto"
    """auto = cuda if present, else cpu."""
    threads: int = 0
    """CPU threads; 0 = leave as torch chose."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass."""
    compile: bool = False
    """Compile each block with torch.compile; see the section [compile]."""
    eval_every: int = 100
    """Steps between evaluations (also before step 1 and at the end); 0 = only those two."""
    log_every: int = 10
    """Steps between printed lines when there is no terminal."""
    gc_every: int = 100
    """Python's garbage collector runs only every so many steps; 0 = leave it automatic."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    sample: str = "auto"
    """Prompt continued at the end of the run; auto = the first words of a held-out document, empty = none."""


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """How blocks are compiled where train.compile = true."""

    cache: str = ""
    """Folder that keeps compiled code for later runs; empty = none."""
    max_breaks: int = -1
    """More graph breaks than this in the first two steps end the run; -1 = only tell."""
    backend: str = "inductor"
    """Of torch.compile. On a GPU inductor also records CUDA graphs."""


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Direct preference optimisation, for task dpo."""

    beta: float = 0.1
    """How dear it is to leave the starting model: the margin is beta times the gain of log-probability."""
    label_smoothing: float = 0.0
    """Probability that a label is wrong, in [0, 0.5)."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What is kept."""

    every: int = 100
    """Steps between checkpoints; 0 = only at the end."""
    keep_last: int = 2
    """Checkpoints kept; 0 = all."""
    background: bool = False
    """Go on training while a checkpoint is written, from a copy in host memory."""


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """A moving average of the weights, kept beside them and saved with them (the group `ema` of a checkpoint)."""

    decay: float = 0.0
    """Share of the average that is kept at each step, such as 0.999; 0 = no average."""
    start: Literal["corrected", "weights", "warmup"] = "corrected"
    """corrected: only weights after steps count; weights: the average begins as the weights at the start; warmup: a
    smaller decay at first, (1 + step) / (10 + step)."""
    evaluate: bool = True
    """Evaluate the average instead of the weights."""
    export: bool = True
    """The model exported at the end is the average."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """The mesh under torchrun."""

    data: int = -1
    """Ranks along the data axis, which share out the sequences; -1 = all that the context axis leaves."""
    context: int = 1
    """Ranks along the context axis, which share out the tokens of each sequence."""
    timeout_seconds: int = 600
    """A collective that waits longer ends the run."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """How much memory a step may take, and what is told about memory."""

    budget: str = ""
    """Bytes that parameters, gradients, optimizer states and activations may take at once, such as 1.5GiB, or a share
    of what a step takes with all activations kept, such as 60%; a hard cap. Empty = no cap."""
    plan: bool = True
    """Meet the budget: measure the first step, then keep activations, compute them again or send them to a second tier.
    false: only enforce it."""
    optimizer: bool = True
    """Keep the optimizer's states in the second tier, and step part by part, where activations alone cannot meet the
    budget."""
    tier: str = ""
    """Folder of the second tier's file on a CPU (a GPU sends to pinned host memory); empty = the system's."""
    rate: float = 0.0
    """Bytes per second to that file and back, to try a slower one; 0 = as fast as it goes."""

    record: str = ""
    """File that tells every allocation of the run, written at its end or where memory runs out: .html (a page), .pickle
    (a snapshot for torch's viewer), .json (Perfetto) or .npz (for `oarlock memory view`); empty = do not record."""
    stacks: bool = True
    """Also note where in the program each allocation was made."""
    events: int = 1_000_000
    """Allocations and frees that are kept, the last ones (40 bytes each)."""


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """What is told about errors."""

    errors: bool = False
    """Errors of backward passes say which call they belong to, and where in the program that is; a loss that is not
    finite is computed again to name what made it so."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainSection = field(default_factory=TrainSection)
    compile: CompileConfig = field(default_factory=CompileConfig)
    dpo: DpoConfig = field(default_factory=DpoConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    def __post_init__(self) -> None:
        """Refuse values that no run can use, naming the key."""
        check_limits(self.to_dict())
        if self.train.steps == 0 and self.train.flops == 0:
            raise ValueError("nothing to do: set train.steps, or a budget in train.flops (for example 2e13)")
        if self.memory.record and Path(self.memory.record).suffix not in SUFFIXES:
            raise ValueError(f"memory.record = {self.memory.record!r} must end in one of {', '.join(SUFFIXES)}")
        if self.memory.budget:
            parse_budget(self.memory.budget, of=1 << 40)
            if self.train.activation_checkpointing:
                raise ValueError(
                    "memory.budget chooses itself what is computed again; set train.activation_checkpointing = false"
                )
        if self.train.compile:
            for key, value in {
                "memory.budget": self.memory.budget,
                "memory.record": self.memory.record,
                "debug.errors": self.debug.errors,
            }.items():
                if value:
                    raise ValueError(
                        f"{key} looks at single operations, which compiled blocks do not have; unset it or "
                        "train.compile"
                    )
        shortest = LEAST_CHUNK * self.parallel.context
        if self.parallel.context > 1 and self.data.sequence_length < shortest:
            raise ValueError(
                f"data.sequence_length = {self.data.sequence_length} is too short for {self.parallel.context} ranks; "
                f"make it at least {shortest}, or parallel.context smaller"
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested dict of plain values, in the order of the fields."""
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        """The resolved configuration as TOML that `load_config` reads back to an equal object."""
        lines: list[str] = []
        for section, values in self.to_dict().items():
            lines += [f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items()), ""]
        return "\n".join(lines)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file and apply `--section.key value` (or `--section.key=value`) pairs.

    Args:
        path: TOML file with the sections of `TrainConfig`.
        overrides: words of a command line after the file's name. Only the result must be complete: a file may leave
            out what the command line gives.

    Raises:
        FileNotFoundError: no such file.
        ValueError: TOML that does not parse, an unknown section or key (the message names the nearest one),
            a value of the wrong type or beyond its limits.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is a folder, not a TOML file" if path.is_dir() else f"no configuration file {path}"
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows write a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    sections = _typed(values, str(path))
    for name, content in _typed(_read_overrides(overrides), _COMMAND_LINE).items():
        sections[name] = sections.get(name, {}) | content
    return _build(sections)


def config_from_dict(values: dict[str, Any], where: str = "configuration") -> TrainConfig:
    """Build a `TrainConfig` from nested dicts; same errors as `load_config`."""
    return _build(_typed(values, where))


def print_options(config: TrainConfig) -> None:
    """List every `--section.key` with its type, meaning and value in `config`."""
    import tyro  # only the command line needs it

    with contextlib.suppress(SystemExit):
        tyro.cli(
            TrainConfig,
            default=config,
            args=["--help"],
            prog="oarlock train CONFIG.toml",
            config=(tyro.conf.FlagConversionOff,),
            use_underscores=True,
        )


def _build(sections: dict[str, dict[str, Any]]) -> TrainConfig:
    hints = typing.get_type_hints(TrainConfig)
    return TrainConfig(**{name: hints[name](**content) for name, content in sections.items()})


def _read_overrides(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Section -> key -> value, read as the key's type; unknown keys are left to `_typed`."""
    hints = typing.get_type_hints(TrainConfig)
    values: dict[str, dict[str, Any]] = {}
    left = list(words)
    while left:
        option, equals, text = left.pop(0).partition("=")
        section, dot, name = option.removeprefix("--").replace("-", "_").partition(".")
        if not option.startswith("--"):
            raise ValueError(f"{_COMMAND_LINE}: {option!r} is no --section.key; CONFIG.toml comes first, then these")
        if not dot:
            keys = {
                key.name: f"--{name}.{key.name}" for name, hint in hints.items() for key in dataclasses.fields(hint)
            }
            matches = [keys[match] for match in difflib.get_close_matches(section, keys, n=1)]
            meant = f"did you mean {matches[0]}? " if matches else ""
            raise ValueError(f"{_COMMAND_LINE}: unknown option {option}; {meant}{_HOW_TO_LIST}")
        if not equals:
            if not left or left[0].startswith("--"):
                raise ValueError(f"{_COMMAND_LINE}: {option} needs a value: {option} VALUE or {option}=VALUE")
            text = left.pop(0)
        kind = typing.get_type_hints(hints[section]).get(name) if section in hints else None
        values.setdefault(section, {})[name] = _read_text(text, kind)
    return values


def _read_text(text: str, kind: Any) -> Any:
    """A word of the command line as `kind`; as it is if it cannot be that, which `_convert` then reports."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _typed(values: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The same with sections and keys known and values of their types."""
    hints = typing.get_type_hints(TrainConfig)
    sections = {}
    for section, content in values.items():
        if section not in hints:
            raise ValueError(f"{where}: unknown section [{section}]{_nearest(section, hints)}{_hint(where)}")
        if not isinstance(content, dict):
            raise ValueError(f"{where}: [{section}] must be a section, got {content!r}")
        sections[section] = _section(hints[section], section, content, where)
    return sections


def _section(cls: type, section: str, content: dict[str, Any], where: str) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    converted = {}
    for name, value in content.items():
        key = f"{section}.{name}"
        if name not in hints:
            raise ValueError(f"{where}: unknown key {key}{_nearest(name, hints, prefix=section + '.')}{_hint(where)}")
        converted[name] = _convert(hints[name], value, key, where)
        if key in _PATHS:
            converted[name] = _without_tilde(converted[name], key, where)
    return converted


def _convert(kind: Any, value: Any, key: str, where: str) -> Any:
    def wrong(expected: str) -> ValueError:
        return ValueError(f"{where}: {key} = {value!r}: expected {expected}")

    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            meant = _nearest(str(value), choices).partition("; known")[0]
            raise ValueError(f"{where}: {key} = {value!r}: one of {', '.join(choices)}{meant}")
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise wrong("a number that fits 64 bits") from None
    if type(value) is not kind:
        names: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
        raise wrong(names[kind])
    return value


def _without_tilde(path: str, key: str, where: str) -> str:
    """A leading ~ is the home folder, also where no shell has replaced it."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{where}: {key} = {path!r}: {error}") from None


def _nearest(name: str, known: Any, prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{matches[0]}?" if matches else f"; known: {', '.join(known)}"


def _hint(where: str) -> str:
    return f" {_HOW_TO_LIST}" if where == _COMMAND_LINE else ""


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, not in TOML
