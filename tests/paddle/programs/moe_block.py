"""A mixture of experts with a corrected softmax gate, in plain Paddle operations: `python moe_block.py OUT_FOLDER`.

Forward and backward once, on values from numpy; the output, the losses and every gradient go to `OUT_FOLDER/moe.npz`.
"""

import os
import sys

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN, CAPACITY = 24, 16, 12, 6, 2, 10


class Expert(nn.Layer):
    def __init__(self):
        super().__init__()
        self.up_gate_proj = nn.Linear(WIDTH, 2 * INNER, bias_attr=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias_attr=False)

    def forward(self, x):
        gate, up = paddle.chunk(self.up_gate_proj(x), chunks=2, axis=-1)
        return self.down_proj(F.silu(gate) * up)


class Gate(nn.Layer):
    """Softmax scores; the experts are chosen by score plus a correction that has no gradient."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter(shape=[WIDTH, EXPERTS], dtype="float32")
        self.e_score_correction_bias = self.create_parameter(
            shape=[1, EXPERTS], dtype="float32", default_initializer=nn.initializer.Constant(0.0)
        )
        self.e_score_correction_bias.stop_gradient = True

    def forward(self, x):
        logits = paddle.matmul(x.cast(paddle.float32), self.weight)
        scores = F.softmax(logits, axis=-1)
        with paddle.no_grad():
            _, chosen = paddle.topk(scores + self.e_score_correction_bias, k=CHOSEN, axis=-1)
        weights = paddle.take_along_axis(scores, chosen, axis=-1)
        weights = weights / paddle.clip(weights.sum(axis=-1, keepdim=True), min=1e-12)
        load = F.one_hot(chosen, num_classes=EXPERTS).sum(axis=1).mean(axis=0) / CHOSEN
        balance = EXPERTS * paddle.sum(load.detach() * scores.mean(axis=0))
        square = paddle.square(paddle.logsumexp(logits, axis=-1)).mean()
        return weights, chosen, balance, square


class MoE(nn.Layer):
    def __init__(self):
        super().__init__()
        self.gate = Gate()
        self.experts = nn.LayerList([Expert() for _ in range(EXPERTS)])
        self.shared = Expert()

    def forward(self, x):
        tokens = x.reshape([-1, WIDTH])
        weights, chosen, balance, square = self.gate(tokens)
        flat = chosen.flatten()
        # The place of each choice in its expert's queue; what lies beyond the capacity is dropped.
        hot = F.one_hot(flat, num_classes=EXPERTS).astype("int64")
        place = ((hot.cumsum(axis=0) - 1) * hot).sum(axis=-1)
        kept = place < CAPACITY
        weights = paddle.where(kept.reshape([-1, CHOSEN]), weights, paddle.zeros_like(weights))
        slot = paddle.where(kept, flat * CAPACITY + place, paddle.full_like(flat, EXPERTS * CAPACITY))
        source = paddle.arange(TOKENS).unsqueeze(1).expand([TOKENS, CHOSEN]).flatten()
        queues = paddle.zeros([EXPERTS * CAPACITY + 1, WIDTH], dtype=tokens.dtype)
        queues = paddle.scatter(queues, slot, paddle.gather(tokens, source), overwrite=True)
        parts = paddle.split(queues[:-1], num_or_sections=EXPERTS, axis=0)
        done = paddle.concat([expert(part) for expert, part in zip(self.experts, parts, strict=True)], axis=0)
        done = paddle.concat([done, paddle.zeros([1, WIDTH], dtype=done.dtype)], axis=0)
        picked = paddle.gather_nd(done, slot.unsqueeze(-1)).reshape([TOKENS, CHOSEN, WIDTH])
        routed = paddle.einsum("tk,tkw->tw", weights, picked)
        return (routed + self.shared(tokens)).reshape(x.shape), balance, square


def main():
    generator = np.random.RandomState(3)
    block = MoE()
    for parameter in block.parameters():
        parameter.set_value((0.3 * generator.standard_normal(list(parameter.shape))).astype("float32"))
    x = paddle.to_tensor(generator.standard_normal((2, TOKENS // 2, WIDTH)).astype("float32"), stop_gradient=False)
    out, balance, square = block(x)
    loss = paddle.mean(paddle.square(out)) + 0.01 * balance + 0.001 * square
    loss.backward()
    found = {"out": out.numpy(), "balance": balance.numpy(), "square": square.numpy(), "x.grad": x.grad.numpy()}
    for name, parameter in block.named_parameters():
        if not parameter.stop_gradient:
            found[f"{name}.grad"] = parameter.grad.numpy()
    np.savez(os.path.join(sys.argv[1], "moe.npz"), **found)
    print(f"{paddle.__name__}: loss {float(loss):.6f}, {len(found)} arrays")


if __name__ == "__main__":
    main()
