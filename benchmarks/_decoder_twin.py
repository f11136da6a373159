"""The program tests/paddle/programs/decoder.py, written by hand for torch.

python benchmarks/_decoder_twin.py OUT_FOLDER [STEPS]
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, LENGTH, BATCH = 64, 64, 2, 4, 2, 32, 4


def text(windows: int) -> Tensor:
    """The numbers of the original's `Text`."""
    generator = np.random.RandomState(0)
    made = (np.arange(windows + LENGTH + 1) * 7 % 31 + generator.randint(0, 3, windows + LENGTH + 1)) % VOCABULARY
    return torch.from_numpy(made.astype("int64"))


class ScaledNorm(torch.autograd.Function):
    """RMSNorm with its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        inverse = torch.rsqrt(torch.mean(torch.square(x), dim=-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        normal = x * inverse
        scaled = grad * weight
        grad_x = inverse * (scaled - normal * torch.mean(scaled * normal, dim=-1, keepdim=True))
        return grad_x, torch.sum(grad * normal, dim=(0, 1)), None


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return ScaledNorm.apply(x, self.weight, 1e-6)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, KEY_HEADS * self.head, bias=False)
        self.v_proj = nn.Linear(WIDTH, KEY_HEADS * self.head, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = rotary(self.q_proj(x).reshape(batch, length, HEADS, self.head), cos, sin)
        k = rotary(self.k_proj(x).reshape(batch, length, KEY_HEADS, self.head), cos, sin)
        v = self.v_proj(x).reshape(batch, length, KEY_HEADS, self.head)
        k, v = (part.repeat_interleave(HEADS // KEY_HEADS, dim=2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.head**-0.5
        mask = torch.triu(torch.full((length, length), -1e9), diagonal=1)
        weights = F.softmax(scores + mask[None, None], dim=-1)
        return self.o_proj(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, WIDTH))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_gate_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up_gate_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), MLP()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)
        nn.init.zeros_(self.lm_head.bias)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(LENGTH).float(), 1e4 ** -(torch.arange(half).float() / half))
        angles = torch.cat([angles, angles], -1)[None, :, None, :]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.lm_head(self.norm(x)).reshape(-1, VOCABULARY), labels.flatten())


def fill(model: nn.Module) -> None:
    """The original's first weights: its matrices are [in, out]."""
    generator = np.random.RandomState(1)
    for name, value in model.state_dict().items():
        if value.ndim == 2:
            shape = value.shape if "embed" in name else value.shape[::-1]
            drawn = torch.from_numpy((0.08 * generator.standard_normal(tuple(shape))).astype("float32"))
            value.copy_(drawn if "embed" in name else drawn.T)


def rate(step: int, steps: int) -> float:
    """Five steps of warm-up, then a cosine to a tenth."""
    if step < 5:
        return step / 5
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 5) / steps)) / 2


def main() -> None:
    """Train, and write the losses and the seconds of each step."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 50
    model = Decoder()
    fill(model)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if "norm" not in n and "bias" not in n], "weight_decay": 0.1},
        {"params": [p for n, p in named if "norm" in n or "bias" in n], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    data = text(BATCH * steps)
    windows = data.unfold(0, LENGTH + 1, 1)
    losses, seconds = [], []
    for step in range(steps):
        batch = windows[step * BATCH : (step + 1) * BATCH]
        begin = time.perf_counter()
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(float(loss.detach()))
    (folder / "losses.json").write_text(json.dumps({"losses": losses, "seconds": seconds}))


if __name__ == "__main__":
    main()
