"""The plan of a run against real models, real optimizers and the memory that real steps allocate."""

import dataclasses
import json
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from oarlock.attention import ColumnMask
from oarlock.models import Decoder, DecoderConfig
from oarlock.ops import linear_cross_entropy
from oarlock.parallel.data import reduce_gradients
from oarlock.train.config import DataConfig, OptimizerConfig, TrainConfig, TrainSection
from oarlock.train.estimate import as_dict, estimate
from oarlock.train.optim import build_optimizers

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


def architecture(family: str = "qwen3", **changed: object) -> DecoderConfig:
    sizes = {"vocab_size": 2000, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
    return DecoderConfig(model_type=family, **{**sizes, **heads, **changed})  # type: ignore[arg-type]


def run_config(optimizer: str = "muon", *, sequence_length: int = 256, **train: object) -> TrainConfig:
    section = TrainSection(**{"batch_size": 2, "steps": 10, **train})  # type: ignore[arg-type]
    optimizer_section = OptimizerConfig(name=optimizer)  # type: ignore[arg-type]
    return TrainConfig(data=DataConfig(sequence_length=sequence_length), train=section, optimizer=optimizer_section)


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that operations made and that are still alive, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._note, out)
        return out

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._alive:
            self._alive[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage._cdata)
        return tensor

    def _freed(self, key: int) -> None:
        self.now -= self._alive.pop(key)


@dataclasses.dataclass
class Measured:
    activations: int
    state: int
    peak: int


def measure(config: TrainConfig, shape: DecoderConfig) -> Measured:
    """Two optimizer steps on random tokens, the second one measured."""
    batch, length = config.train.batch_size, config.data.sequence_length
    ids = torch.randint(0, shape.vocab_size, (batch, length))
    with LiveBytes() as live:
        model = Decoder(shape)
        model.activation_checkpointing = config.train.activation_checkpointing
        optimizers = build_optimizers(model, config.optimizer)
        mask = ColumnMask.causal_document([[100, length - 100]] * batch)
        activations = 0
        for _ in range(2):
            live.peak = live.now
            for _ in range(config.train.accumulation):
                before = live.now
                with torch.autocast("cpu", torch.bfloat16, enabled=config.train.dtype == "bf16"):
                    hidden = model(ids, mask=mask)
                    activations = live.now - before
                    loss = linear_cross_entropy(hidden.flatten(0, 1), model.output_weight, ids.flatten())
                    del hidden
                loss.backward()
                del loss
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
    tensors = [t for o in optimizers.values() for s in o.state.values() for t in s.values() if torch.is_tensor(t)]
    return Measured(activations, sum(t.numel() * t.element_size() for t in tensors), live.peak)


LATENT = architecture(
    "deepseek_v3",
    **{"num_key_value_heads": 4, "head_dim": 0, "kv_lora_rank": 96, "q_lora_rank": 80},
    **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "sparse_layers": (1, 2)},
    **{"num_shared_experts": 1, **EXPERTS},
)
SINKS = architecture("gpt_oss", num_experts=8, num_experts_per_tok=2, intermediate_size=96, sliding_window=64)
CASES = {
    "llama": (architecture("llama"), run_config()),
    "tall vocabulary": (architecture(vocab_size=12_000, num_hidden_layers=1), run_config("adamw")),
    "wide MLP": (architecture(vocab_size=300, intermediate_size=1024), run_config()),
    "accumulation": (architecture(), run_config("adamw", accumulation=2)),
    "checkpointing": (architecture(vocab_size=300, intermediate_size=1024), run_config(activation_checkpointing=True)),
    "bf16": (architecture(), run_config(dtype="bf16")),
    "bf16, wide MLP": (architecture(vocab_size=300, intermediate_size=1024), run_config("adamw", dtype="bf16")),
    "experts": (architecture("qwen3_moe", **EXPERTS), run_config("adamw")),
    "shared experts": (architecture("ernie4_5_moe", num_shared_experts=1, **EXPERTS), run_config()),
    "experts, bf16": (architecture("qwen3_moe", **EXPERTS), run_config(dtype="bf16")),
    "latent attention": (LATENT, run_config("adamw")),
    "latent attention, bf16": (LATENT, run_config(dtype="bf16")),
    "sinks and clamped experts": (SINKS, run_config("adamw")),
    "sinks and clamped experts, bf16": (SINKS, run_config(dtype="bf16")),
    "few tokens": (architecture(), run_config(sequence_length=128, batch_size=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_a_step_allocates(name: str) -> None:
    shape, config = CASES[name]
    planned, measured = estimate(config, shape).memory, measure(config, shape)
    assert planned.optimizer_state == measured.state
    if not config.train.activation_checkpointing:
        # What is not counted: masks, position ids, expert loads.
        assert planned.activations == pytest.approx(measured.activations, rel=0.03)
    # Between the three moments of `Memory.peak` lie others, and small temporaries of many operations.
    assert planned.peak == pytest.approx(measured.peak, rel=0.08)


def test_ranks_add_no_memory() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shape = architecture(hidden_size=512)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with LiveBytes() as live:
            model = Decoder(shape)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            live.peak = before = live.now
            reduce_gradients(model.parameters())
    finally:
        dist.destroy_process_group()
    # Large gradients travel in place; small ones wait in a few buckets of 1 MiB.
    assert live.peak - before <= 6 * 2**20
    assert estimate(run_config(), shape, world_size=2).memory == estimate(run_config(), shape).memory


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_activations_are_the_storages_that_autograd_saves(family: str) -> None:
    shape, config = architecture(family), run_config()
    model, saved = Decoder(shape), {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        hidden = model(torch.randint(0, shape.vocab_size, (2, 256)))
    total = sum(saved.values()) + hidden.numel() * 4  # the last one is kept by the loss
    assert estimate(config, shape).memory.activations == pytest.approx(total, rel=0.02)


@pytest.mark.parametrize(
    "shape",
    [
        architecture("llama", tie_word_embeddings=False, attention_bias=True),
        architecture("qwen2"),
        architecture("qwen3_moe", sparse_layers=(1,), **EXPERTS),
        architecture("ernie4_5_moe", num_shared_experts=1, **EXPERTS),
        LATENT,
    ],
    ids=lambda c: c.model_type,
)
def test_parameters_are_those_of_the_real_model(shape: DecoderConfig) -> None:
    planned, model = estimate(run_config(), shape).parameters, Decoder(shape)
    assert planned.total == sum(p.numel() for p in model.parameters())
    assert planned.embedding == shape.vocab_size * shape.hidden_size
    # One expert is three matrices E x F; of X experts a token uses T.
    num_sparse = len(shape.sparse_layers)
    idle = (shape.num_experts - shape.num_experts_per_tok) * 3 * shape.hidden_size * shape.moe_intermediate_size
    assert planned.active == planned.total - num_sparse * idle


def test_a_model_of_any_size_is_planned_without_memory() -> None:
    huge = architecture(
        "qwen3_moe",
        **{"vocab_size": 151_936, "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64},
        **{"num_key_value_heads": 4, "head_dim": 128, "tie_word_embeddings": False, "intermediate_size": 12_288},
        **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536},
    )
    plan = estimate(run_config("adamw"), huge)
    # Qwen3-235B-A22B, as its authors count it.
    assert round(plan.parameters.total / 1e9) == 235
    assert round(plan.parameters.active / 1e9) == 22
    assert plan.memory.parameters == 4 * plan.parameters.total


def test_published_models_have_their_published_sizes() -> None:
    deepseek = DecoderConfig.from_hf(
        {"model_type": "deepseek_v3", "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18_432}
        | {"num_hidden_layers": 61, "num_attention_heads": 128}
    )
    counts = estimate(run_config("adamw"), deepseek).parameters
    assert round(counts.total / 1e9) == 671
    assert round((counts.active - counts.embedding) / 1e9) == 37  # a token reads one row of the table
    gpt_oss = DecoderConfig.from_hf(
        {"model_type": "gpt_oss", "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880}
        | {"num_hidden_layers": 36, "num_attention_heads": 64}
    )
    counts = estimate(run_config("adamw"), gpt_oss).parameters
    assert round(counts.total / 1e9, 2) == 116.83  # the model card of gpt-oss-120b
    assert round((counts.active - counts.embedding) / 1e9, 2) == 5.13


def test_work_scales_with_ranks_and_micro_batches() -> None:
    shape = architecture()
    one = estimate(run_config(steps=10), shape)
    many = estimate(run_config(steps=10, accumulation=3), shape, world_size=4)
    assert one.tokens_per_step == 2 * 256
    assert many.tokens == 12 * one.tokens
    assert many.seconds(1e12, 0.5) == pytest.approx(3 * one.seconds(1e12, 0.5))
    assert one.flops == one.tokens * Decoder(shape).flops_per_token(128.5)
    budget = dataclasses.replace(run_config(), train=TrainSection(batch_size=2, flops=one.flops * 1.001))
    assert estimate(budget, shape).num_steps == 10


def test_fewer_visible_keys_cost_less() -> None:
    shape, config = architecture(), run_config()
    wide, narrow = estimate(config, shape), estimate(config, shape, mean_visible=28.5)
    # 12 · layers · heads · head_dim per key
    assert wide.flops_per_token - narrow.flops_per_token == pytest.approx(12 * 3 * 4 * 32 * 100)


def test_windows_count_the_keys_that_are_seen() -> None:
    types = ("sliding_attention", "full_attention", "sliding_attention")
    shape, config = architecture(sliding_window=40, layer_types=types), run_config()
    plan, full = estimate(config, shape), estimate(config, architecture())
    assert plan.mean_within == {40: pytest.approx(sum(min(row + 1, 40) for row in range(256)) / 256)}
    # 12 · heads · head_dim per key, in two of three layers
    saved = 12 * 4 * 32 * 2 * (128.5 - plan.mean_within[40])
    assert full.flops_per_token - plan.flops_per_token == pytest.approx(saved)
    given = estimate(config, shape, mean_visible=100.0, mean_within=lambda window: window / 2)
    assert given.mean_within == {40: 20.0}
    assert estimate(config, shape, mean_visible=30.0).mean_within == {40: 30.0}


def test_the_json_form_is_plain() -> None:
    plan = estimate(run_config(), architecture())
    values = json.loads(json.dumps(as_dict(plan)))
    assert values["memory_kept"]["peak"] == plan.memory_kept.peak
    assert values["parameters"]["non_embedding"] == plan.parameters.total - plan.parameters.embedding


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"mean_visible": 300.0}, r"mean_visible must lie in \(0, 256"),
    ],
)
def test_values_that_mean_nothing_are_refused(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate(run_config(), architecture(), **changed)
    with pytest.raises(ValueError, match="must be positive"):
        estimate(run_config(), architecture()).seconds(0, 0.5)
