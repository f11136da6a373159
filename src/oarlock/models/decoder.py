"""The decoder: one architecture for all families, dense and sparse.

Notable choices: RMSNorm before each sub-layer, RoPE tables once per forward pass, grouped-query or latent attention
through FlashMask column masks (packed documents, windows and caches are masks, not code paths), SwiGLU, tied or untied
head, experts where the configuration places them. Norms, rotation and router run in float32.

B batch, S sequence, L cached positions, E model width, V vocabulary, X experts.
"""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from oarlock import ops
from oarlock.attention import ColumnMask
from oarlock.attention.context_parallel import ContextPlan
from oarlock.models.attention import Attention, KVCache, RMSNorm
from oarlock.models.config import DecoderConfig
from oarlock.models.latent_attention import LatentAttention
from oarlock.models.linear import Linear
from oarlock.models.mlp import MLP
from oarlock.models.moe import Router, RouterStatistics, SparseMLP
from oarlock.models.window import with_window


class DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = (LatentAttention if config.family.latent_attention else Attention)(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: SparseMLP | MLP = (
            SparseMLP(config)
            if config.is_sparse(layer)
            else MLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        )

    def forward(
        self,
        x_BSE: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: ColumnMask,
        cache: KVCache | None,
        plan: ContextPlan | None = None,
    ) -> tuple[Tensor, RouterStatistics | None]:
        attended_BSE = self.self_attn(self.input_layernorm(x_BSE), cos, sin, mask, cache, plan)
        norm = self.post_attention_layernorm
        x_BSE, normed_BSE = ops.add_rms_norm(x_BSE, attended_BSE, norm.weight, norm.eps)
        if isinstance(self.mlp, SparseMLP):
            update_BSE, statistics = self.mlp(normed_BSE)
            return x_BSE + update_BSE, statistics
        return x_BSE + self.mlp(normed_BSE), None


class Decoder(nn.Module):
    """A language model without its loss: token ids in, normalised hidden states out.

    The weights are fresh (see `initialize`); under `torch.device("meta")` nothing is allocated.
    Set `activation_checkpointing` to keep only each layer's input for the backward pass and compute the rest again.

    Args:
        config: the shape.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        # On meta first: torch's own initialisation would draw every weight for nothing.
        device = torch.get_default_device()
        with torch.device("meta"):
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
            self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = (
                None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size, bias=False)
            )
        self._statistics: list[RouterStatistics] = []
        self._load_LX: Tensor | None = None
        if device.type != "meta":
            self.to_empty(device=device)
            self.initialize()

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        mask: ColumnMask | None = None,
        cache: KVCache | None = None,
        plan: ContextPlan | None = None,
    ) -> Tensor:
        """Hidden states after the final norm.

        Args:
            input_ids: int64 [B, S].
            position_ids: int64 [B, S] or [1, S] for RoPE, restarting at each packed document. None: L, L + 1, ...
            mask: which of the L + S keys each of the S rows sees. None: plain causal.
            cache: earlier keys and values; this pass appends to it.
            plan: context parallelism: the S rows are those that this process holds of a longer sequence, which
                ``mask`` (default: plain causal) describes as a whole. Without a cache.

        Returns:
            [B, S, E].
        """
        if plan is not None and cache is not None:
            raise ValueError("a plan of context parallelism and a cache exclude each other")
        batch, seqlen = input_ids.shape
        past = 0 if cache is None else cache.length
        if position_ids is None:
            device = input_ids.device
            own = torch.arange(past, past + seqlen, device=device) if plan is None else plan.position_ids.to(device)
            position_ids = own.unsqueeze(0)
        if mask is None:
            rows = seqlen if plan is None else plan.seqlen
            mask = ColumnMask.plain_causal(rows, past + rows, batch=batch, device=input_ids.device)
        config = self.config
        cos, sin = ops.rope_tables(position_ids, config.rope_head_dim, config.rope_theta, config.rope_scaling)
        x_BSE = self.embed_tokens(input_ids)
        statistics = []
        for index, layer in enumerate(self.layers):
            arguments = (x_BSE, cos, sin, with_window(mask, config.window(index)), cache, plan)
            if self.activation_checkpointing and cache is None and torch.is_grad_enabled():
                outputs = checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False)
                assert isinstance(outputs, tuple)
                x_BSE, routed = outputs
            else:
                x_BSE, routed = layer(*arguments)
            if routed is not None:
                statistics.append(routed)
        self._record(statistics)
        return self.norm(x_BSE)

    @property
    def output_weight(self) -> Tensor:
        """[V, E]: the head's weight, or the embedding's where they are tied."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden · output_weightᵀ: [..., E] to [..., V]. For a training loss see `oarlock.ops.linear_cross_entropy`."""
        return F.linear(hidden, self.output_weight)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator | None = None) -> None:
        """Fresh weights: normal with standard deviation initializer_range, norms 1, biases 0.

        The projections that write into the residual stream (o_proj, down_proj) are divided by sqrt(2 · layers), so that
        its variance does not grow with depth (Radford et al., GPT-2, 2019).

        Args:
            generator: source of all draws, in the order of the parameters; the same seed gives the same weights on
                any device when the generator lives on the CPU. None: torch's global one.
        """
        depth_scale = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                writes_residual = name.removesuffix(".weight").endswith(("o_proj", "down_proj"))
                std = self.config.initializer_range * (depth_scale if writes_residual else 1.0)
                source = parameter.device if generator is None else generator.device
                draw = torch.empty(parameter.shape, dtype=torch.float32, device=source)
                parameter.copy_(draw.normal_(0.0, std, generator=generator))
        for bias in self._correction_biases():
            bias.zero_()

    def num_parameters(self) -> int:
        """Trainable numbers; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self, mean_visible: float, mean_within: Callable[[int], float] | None = None) -> float:
        """Model FLOPs of forward and backward: 6 per matmul weight used, 6 · H · (D + Dv) per layer and visible key.

        Args:
            mean_visible: keys that a row sees on average in a layer without a sliding window.
            mean_within: the same for a sliding window, from its width. None: min(mean_visible, window), the most that
                it can be.
        """
        config = self.config
        weights = config.vocab_size * config.hidden_size
        keys = 0.0
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            unused = 0
            if isinstance(layer.mlp, SparseMLP):
                total = sum(p.numel() for p in layer.mlp.experts.parameters() if p.dim() == 3)
                unused = total - total // config.num_experts * config.num_experts_per_tok
            matrices = (p for name, p in layer.named_parameters() if p.dim() > 1 and not name.endswith("bias"))
            weights += sum(p.numel() for p in matrices) - unused
            window = config.window(index)
            if window is None:
                keys += mean_visible
            else:
                keys += min(mean_visible, window) if mean_within is None else mean_within(window)
        return 6.0 * weights + 6.0 * config.num_attention_heads * (config.head_dim + config.value_head_dim) * keys

    # ---- experts: auxiliary loss and balance -------------------------------------------------------------------------

    def auxiliary_loss(self) -> Tensor:
        """router_aux_loss_coef × mean balance loss of the sparse layers in the last forward pass.

        Zero unless `output_router_logits` is set in the configuration. Add it to the training loss.
        """
        losses = [s.balance_loss for s in self._statistics if s.balance_loss is not None]
        if not losses:
            return torch.zeros((), device=self.embed_tokens.weight.device)
        return self.config.router_aux_loss_coef * torch.stack(losses).mean()

    def expert_load(self) -> Tensor | None:
        """int64 [sparse layers, X]: tokens per expert in the training passes since the last `update_balance`."""
        return self._load_LX

    @torch.no_grad()
    def update_balance(self, rate: float = 0.001, group: dist.ProcessGroup | None = None) -> None:
        """Move each router's selection bias by rate · sign(mean load - load), then forget the load.

        Call it after every optimizer step. Nothing happens in families whose router has no such bias.

        Args:
            rate: step of the bias.
            group: ranks whose loads are added up first; None means all ranks where torch.distributed runs.

        Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024.
        """
        load_LX, self._load_LX = self._load_LX, None
        biases = self._correction_biases()
        if load_LX is None or not biases:
            return
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(load_LX, group=group)
        for bias, load_X in zip(biases, load_LX, strict=True):
            bias.copy_(ops.balanced_bias(bias, load_X, rate))

    def _record(self, statistics: list[RouterStatistics]) -> None:
        self._statistics = statistics
        if statistics and self.training and torch.is_grad_enabled():
            load_LX = torch.stack([s.load_X for s in statistics])
            self._load_LX = load_LX if self._load_LX is None else self._load_LX + load_LX

    def _correction_biases(self) -> list[Tensor]:
        routers = [module for module in self.modules() if isinstance(module, Router)]
        return [router.correction_bias for router in routers if router.correction_bias is not None]
