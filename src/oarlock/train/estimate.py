"""What a run will need, from its configuration alone: parameters, FLOPs, memory of each rank, time.

    plan = estimate(config, architecture, world_size=8)
    plan.memory.peak, plan.seconds(flops_per_second=3e11, share=0.6)

Parameters and optimizer state are exact: the model and its optimizers are built on the meta device. Activations and
working space follow from what each operation keeps and allocates on the CPU; the tests compare them with real steps.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch

from oarlock.models import Decoder, DecoderConfig
from oarlock.ops.cross_entropy import CHUNK_ELEMENTS, CHUNK_TOKENS
from oarlock.train.config import TrainConfig
from oarlock.train.optim import Muon, build_optimizers, multiplies_bf16_fast

__all__ = ["Estimate", "Memory", "Parameters", "estimate"]

_FP32, _BF16, _INT64 = 4, 2, 8


@dataclass(frozen=True)
class Parameters:
    """Numbers of trainable weights."""

    total: int
    active: int
    """Used for one token: a sparse layer counts only the experts that the token is sent to."""
    embedding: int
    """Of the embedding table, shared with the head or not."""

    @property
    def non_embedding(self) -> int:
        """All but the embedding table."""
        return self.total - self.embedding


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank's tensors, without what Python, torch and the memory allocator take for themselves."""

    parameters: int
    gradients: int
    optimizer_state: int
    """With the moving average of the weights, if one is kept."""
    activations: int
    """Kept from the forward pass for the backward pass; under bf16 with the cast weights."""
    loss: int
    """While the fused loss runs: one chunk of logits, and the gradients that it computes ahead."""
    backward: int
    """Working space of the backward pass at the last layer, where it begins, with the gradient of the head."""
    backward_end: int
    """Activations and working space left at the first layer, where the backward pass ends and all gradients exist."""
    optimizer_step: int
    """Working space of the optimizer."""
    keeps_gradients: bool
    """Whether gradients exist during the forward pass (several micro-batches per step)."""

    @property
    def peak(self) -> int:
        """The largest moment: the loss, either end of the backward pass, the optimizer step."""
        early = self.gradients if self.keeps_gradients else 0
        begin = early + self.activations + max(self.loss, self.backward)
        end = self.gradients + max(self.backward_end, self.optimizer_step)
        return self.parameters + self.optimizer_state + max(begin, end)


@dataclass(frozen=True)
class Estimate:
    """What a run will need."""

    world_size: int
    mean_visible: float
    """Keys that a token sees on average in a layer without a sliding window."""
    mean_within: dict[int, float]
    """The same for each sliding window of the model."""
    parameters: Parameters
    flops_per_token: float
    """Forward and backward."""
    tokens_per_step: int
    """Of all ranks and micro-batches, padding included."""
    num_steps: int
    checkpointing: bool
    """Whether the configuration recomputes activations."""
    memory_kept: Memory
    """With all activations kept."""
    memory_recomputed: Memory
    """With activation checkpointing."""
    cache_bytes_per_token: int
    """Of all layers in bf16 when the model generates."""

    @property
    def memory(self) -> Memory:
        """As configured."""
        return self.memory_recomputed if self.checkpointing else self.memory_kept

    @property
    def tokens(self) -> int:
        """Of the whole run."""
        return self.num_steps * self.tokens_per_step

    @property
    def flops(self) -> float:
        """Model FLOPs of the whole run (recomputation not counted)."""
        return self.tokens * self.flops_per_token

    def seconds(self, flops_per_second: float, share: float) -> float:
        """Time of all steps if every rank reaches `share` of `flops_per_second`.

        Raises:
            ValueError: a rate or a share that is not positive.
        """
        if flops_per_second <= 0 or share <= 0:
            raise ValueError(f"peak and share must be positive, got {flops_per_second} and {share}")
        return self.flops / (flops_per_second * share * self.world_size)


def estimate(
    config: TrainConfig,
    architecture: DecoderConfig,
    *,
    world_size: int = 1,
    mean_visible: float | None = None,
    mean_within: Callable[[int], float] | None = None,
) -> Estimate:
    """Plan a run; nothing of the model's size is allocated.

    Args:
        config: of the run.
        architecture: of the model (see `oarlock.train.build.decoder_config`).
        world_size: data-parallel ranks; each holds the whole model, and sums gradients in place.
        mean_visible: keys that a token sees on average; None assumes one document per sequence, (S + 1) / 2, the most
            that causal attention can cost. Packed documents see less.
        mean_within: the same from the width of a sliding window. None: exact for one document per sequence, or the most
            that it can be if mean_visible is given.

    Raises:
        ValueError: a world size or mean_visible that is not positive.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    length = config.data.sequence_length
    if mean_visible is None:
        mean_visible, mean_within = (length + 1) / 2, lambda window: _mean_within(length, window)
    if not 0 < mean_visible <= length:
        raise ValueError(f"mean_visible must lie in (0, {length}], got {mean_visible}")
    with torch.device("meta"):
        model = Decoder(architecture)
    within = {w: min(mean_visible, w) if mean_within is None else mean_within(w) for w in architecture.windows}
    flops_per_token = model.flops_per_token(mean_visible, within.__getitem__)
    sequences = config.train.batch_size * config.train.accumulation * world_size
    tokens_per_step = sequences * length
    num_steps = config.train.steps or max(1, int(config.train.flops / (flops_per_token * tokens_per_step)))
    kept, recomputed = (_memory(config, architecture, model, checkpointing=c) for c in (False, True))
    return Estimate(
        world_size=world_size,
        mean_visible=mean_visible,
        mean_within=within,
        parameters=_parameters(architecture, model),
        flops_per_token=flops_per_token,
        tokens_per_step=tokens_per_step,
        num_steps=num_steps,
        checkpointing=config.train.activation_checkpointing,
        memory_kept=kept,
        memory_recomputed=recomputed,
        cache_bytes_per_token=architecture.num_hidden_layers * architecture.cache_width * _BF16,
    )


def _mean_within(length: int, window: int) -> float:
    """Keys that a token of one document sees on average: 1, 2, ... up to the window."""
    ramp = min(length, window)
    return (ramp * (ramp + 1) / 2 + (length - ramp) * window) / length


def _parameters(architecture: DecoderConfig, model: Decoder) -> Parameters:
    total = model.num_parameters()
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    idle = 0
    if experts:
        idle = experts // architecture.num_experts * (architecture.num_experts - architecture.num_experts_per_tok)
    return Parameters(total, total - idle, model.embed_tokens.weight.numel())


def _memory(config: TrainConfig, architecture: DecoderConfig, model: Decoder, *, checkpointing: bool) -> Memory:
    num_tokens = config.train.batch_size * config.data.sequence_length
    half = config.train.dtype == "bf16"
    weights, depth = model.num_parameters(), architecture.num_hidden_layers
    layers = [_LayerBytes(architecture, index, half) for index in range(depth)]
    stream = depth * architecture.hidden_size * _FP32  # the layers' inputs, all that checkpointing keeps
    # Autocast casts every matrix of the layers once and holds the copies as long as its block or the graph lives.
    cast = sum(p.numel() for p in model.layers.parameters() if p.dim() > 1) * _BF16 if half else 0
    again = max(layer.saved for layer in layers) * num_tokens + cast // depth if checkpointing else 0
    work = max(layer.backward for layer in layers) * num_tokens + again

    head = architecture.vocab_size * architecture.hidden_size * _FP32
    ahead = num_tokens * architecture.hidden_size * _FP32 + head
    chunk = min(CHUNK_TOKENS, max(1, CHUNK_ELEMENTS // architecture.vocab_size), num_tokens)
    logits = chunk * (architecture.vocab_size + (4 if half else 3) * architecture.hidden_size) * _FP32
    casts_of_head = head * 3 // 2 if half else 0

    state, step_work = _optimizer_bytes(config, model)
    kept = stream if checkpointing else sum(layer.saved for layer in layers)
    return Memory(
        parameters=weights * _FP32 + sum(b.numel() * b.element_size() for b in model.buffers()),
        gradients=weights * _FP32,
        optimizer_state=state + (weights * _FP32 if config.ema.decay else 0),
        activations=num_tokens * (kept + _outer_bytes(architecture)) + (0 if checkpointing else cast),
        loss=ahead + logits + casts_of_head + (cast if checkpointing else 0),
        # Either the fused loss scales its gradients, or a layer runs while the head's gradient already exists.
        backward=max(2 * ahead, work + head),
        backward_end=work + num_tokens * (architecture.hidden_size * _FP32 if checkpointing else layers[0].saved),
        optimizer_step=step_work,
        keeps_gradients=config.train.accumulation > 1,
    )


def _outer_bytes(architecture: DecoderConfig) -> int:
    """Per token, outside the layers: input and output of the final norm, its 1/rms, the RoPE tables."""
    return (2 * architecture.hidden_size + 1 + architecture.rope_head_dim) * _FP32


class _LayerBytes:
    """Bytes per token of one layer: `saved` for the backward pass, `backward` while that pass runs through its MLP."""

    def __init__(self, architecture: DecoderConfig, index: int, half: bool) -> None:
        c = architecture
        norms = 2 * (c.hidden_size + 1) * _FP32
        attention = self._latent_attention(c, half) if c.family.latent_attention else self._attention(c, half)
        mlp, self.backward = self._sparse(c, half) if c.is_sparse(index) else self._dense(c, half)
        self.saved = norms + attention + mlp

    @staticmethod
    def _attention(c: DecoderConfig, half: bool) -> int:
        size = _BF16 if half else _FP32
        queries, keys = c.num_attention_heads, c.num_key_value_heads
        # A linear layer under autocast keeps its own cast of the input; in fp32 all share the norm's output.
        inputs = (3 if half else 1) * c.hidden_size
        saved = (inputs + (2 * queries + 2 * keys) * c.head_dim) * size + queries * _FP32
        if c.family.qk_norm:
            saved += (queries + keys) * (c.head_dim * size + _FP32)
        return saved

    @staticmethod
    def _latent_attention(c: DecoderConfig, half: bool) -> int:
        size = _BF16 if half else _FP32
        heads = c.num_attention_heads
        inputs = (2 if half else 1) * c.hidden_size
        # Before and after its norm; the former with the shared key, of which it is a view.
        latents = 2 * c.kv_lora_rank + c.qk_rope_head_dim + 2 * (c.q_lora_rank or 0)
        # Queries and keys put together, what keys and values were made as, and the output.
        per_head = 2 * c.head_dim + (c.qk_nope_head_dim + c.v_head_dim) + c.v_head_dim
        return (inputs + latents + heads * per_head) * size + (heads + 2) * _FP32

    @staticmethod
    def _dense(c: DecoderConfig, half: bool) -> tuple[int, int]:
        size = _BF16 if half else _FP32
        saved = ((2 if half else 1) * c.hidden_size + 3 * c.intermediate_size) * size
        return saved, _swiglu_work(c.intermediate_size, half)

    @staticmethod
    def _sparse(c: DecoderConfig, half: bool) -> tuple[int, int]:
        size = _BF16 if half else _FP32
        width, chosen, expert = c.hidden_size, c.num_experts_per_tok, c.moe_intermediate_size
        router = width * _FP32 + (c.num_experts + 2 * chosen + 2) * _FP32 + 3 * chosen * _INT64
        # Under autocast gate and up each cast their input, unless they are one matrix.
        copies = 3 if half and not c.family.clamped_experts else 2
        experts = (copies * width + 3 * expert) * chosen * size
        fused = c.num_shared_experts * expert
        shared = (3 * fused + (2 * width if half else 0)) * size if fused else 0
        work = max(_swiglu_work(chosen * expert, half), 2 * chosen * width * _FP32)
        return router + experts + shared, work


def _swiglu_work(width: int, half: bool) -> int:
    """Per token: gradients of gate and up beyond the activations that they replace; in bf16 computed in fp32."""
    return width * (4 * _FP32 + 2 * _BF16 if half else 2 * _FP32)


def _optimizer_bytes(config: TrainConfig, model: Decoder) -> tuple[int, int]:
    """(state, working space of a step). Muon works on all matrices of one shape at once."""
    state, work = 0, 0
    for optimizer in build_optimizers(model, config.optimizer).values():
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not isinstance(optimizer, Muon):
            state += sum(2 * p.numel() * _FP32 + _FP32 for p in parameters)  # two moments and a step counter
            continue
        state += sum(p.numel() * _FP32 for p in parameters)
        stacks: dict[torch.Size, int] = {}
        for p in parameters:
            shape = p.shape[-2:]
            stacks[shape] = stacks.get(shape, 0) + p.numel()
        work = max(_muon_work(n, n * min(shape) // max(shape), config.train.device) for shape, n in stacks.items())
    return state, work


def _muon_work(stack: int, gram: int, device: str) -> int:
    """Working space of Muon's iteration on a stack of matrices, from the numbers in it and in its Gram matrices."""
    ahead = stack * _FP32  # momentum and gradient mixed, alive to the end
    if device == "auto":  # not choose_device: a plan may be for a device that is not here
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not multiplies_bf16_fast(torch.device(device)):
        return ahead + (3 * stack + 2 * gram) * _FP32
    return ahead + max((3 * stack + 2 * gram) * _BF16, 2 * stack * _BF16 + stack * _FP32)


def as_dict(plan: Estimate) -> dict[str, object]:
    """Plain values for JSON, the derived ones included."""
    values = dataclasses.asdict(plan)
    values["parameters"]["non_embedding"] = plan.parameters.non_embedding
    for name in ("memory_kept", "memory_recomputed"):
        values[name]["peak"] = getattr(plan, name).peak
    return values | {"tokens": plan.tokens, "flops": plan.flops}
