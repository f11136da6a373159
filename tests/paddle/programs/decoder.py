"""Train a small decoder, written as one writes Paddle: `python decoder.py OUT_FOLDER [STEPS]`.

Runs on Paddle 3.3.1 and, unchanged, through `oarlock paddle run`. The losses go to `OUT_FOLDER/losses.json`. First
weights and data come from numpy, so that two runs can be compared number by number.
"""

import json
import os
import sys
import time

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer
from paddle.io import BatchSampler, DataLoader, Dataset

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, LENGTH, BATCH = 64, 64, 2, 4, 2, 32, 4


class Text(Dataset):
    """Windows of a periodic text with noise."""

    def __init__(self, windows):
        generator = np.random.RandomState(0)
        text = (np.arange(windows + LENGTH + 1) * 7 % 31 + generator.randint(0, 3, windows + LENGTH + 1)) % VOCABULARY
        self.text = text.astype("int64")

    def __getitem__(self, index):
        return self.text[index : index + LENGTH], self.text[index + 1 : index + LENGTH + 1]

    def __len__(self):
        return len(self.text) - LENGTH - 1


class ScaledNorm(PyLayer):
    """RMSNorm with its own backward."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        inverse = paddle.rsqrt(paddle.mean(paddle.square(x), axis=-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, inverse = ctx.saved_tensor()
        normal = x * inverse
        scaled = grad * weight
        grad_x = inverse * (scaled - normal * paddle.mean(scaled * normal, axis=-1, keepdim=True))
        return grad_x, paddle.sum(grad * normal, axis=[0, 1])


class RMSNorm(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.weight = self.create_parameter(shape=[width], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        return ScaledNorm.apply(x, self.weight, 1e-6)


def rotary(x, cos, sin):
    first, second = paddle.split(x, 2, axis=-1)
    return x * cos + paddle.concat([-second, first], axis=-1) * sin


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.head = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias_attr=False)
        self.k_proj = nn.Linear(WIDTH, KEY_HEADS * self.head, bias_attr=False)
        self.v_proj = nn.Linear(WIDTH, KEY_HEADS * self.head, bias_attr=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias_attr=False)

    def forward(self, x, cos, sin):
        batch, length = x.shape[0], x.shape[1]
        q = rotary(self.q_proj(x).reshape([batch, length, HEADS, self.head]), cos, sin)
        k = rotary(self.k_proj(x).reshape([0, 0, KEY_HEADS, self.head]), cos, sin)
        v = self.v_proj(x).reshape([0, 0, KEY_HEADS, self.head])
        k, v = (paddle.repeat_interleave(part, HEADS // KEY_HEADS, axis=2) for part in (k, v))
        q, k, v = (paddle.transpose(part, perm=[0, 2, 1, 3]) for part in (q, k, v))
        scores = paddle.matmul(q, k, transpose_y=True) * self.head**-0.5
        mask = paddle.triu(paddle.full([length, length], -1e9, dtype="float32"), diagonal=1)
        weights = F.softmax(scores + mask.unsqueeze([0, 1]), axis=-1)
        return self.o_proj(paddle.matmul(weights, v).transpose([0, 2, 1, 3]).reshape([batch, length, WIDTH]))


class MLP(nn.Layer):
    def __init__(self):
        super().__init__()
        self.up_gate_proj = nn.Linear(WIDTH, 4 * WIDTH, bias_attr=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias_attr=False)

    def forward(self, x):
        gate, up = self.up_gate_proj(x).chunk(2, axis=-1)
        return self.down_proj(F.silu(gate) * up)


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.self_attn, self.mlp = Attention(), MLP()
        self.dropout = nn.Dropout(0.0)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.LayerList([Block() for _ in range(LAYERS)])
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(
            WIDTH, VOCABULARY, bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0))
        )
        half = WIDTH // HEADS // 2
        angles = paddle.outer(
            paddle.arange(LENGTH, dtype="float32"), 1e4 ** -(paddle.arange(half).astype("float32") / half)
        )
        angles = paddle.concat([angles, angles], axis=-1)[None, :, None, :]
        self.register_buffer("cos", paddle.cos(angles), persistable=False)
        self.register_buffer("sin", paddle.sin(angles), persistable=False)

    def forward(self, tokens, labels=None):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.norm(x))
        if labels is None:
            return logits
        return F.cross_entropy(logits.reshape([-1, VOCABULARY]), labels.flatten(), reduction="mean")


def fill(model):
    """The same first weights everywhere, in the layout of Paddle's state dicts."""
    generator = np.random.RandomState(1)
    state = {}
    for name, value in model.state_dict().items():
        if len(value.shape) == 1:
            state[name] = value.numpy()
        else:
            state[name] = (0.08 * generator.standard_normal(list(value.shape))).astype("float32")
    missing, unexpected = model.set_state_dict(state)
    assert not missing, missing
    assert not unexpected, unexpected


def make_optimizer(model, steps):
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(learning_rate=3e-3, T_max=steps, eta_min=3e-4)
    schedule = paddle.optimizer.lr.LinearWarmup(schedule, warmup_steps=5, start_lr=0.0, end_lr=3e-3)
    decayed = [p.name for n, p in model.named_parameters() if "norm" not in n and "bias" not in n]
    optimizer = paddle.optimizer.AdamW(
        learning_rate=schedule,
        beta1=0.9,
        beta2=0.95,
        parameters=model.parameters(),
        weight_decay=0.1,
        grad_clip=nn.ClipGradByGlobalNorm(1.0),
        apply_decay_param_fun=lambda name: name in decayed,
    )
    return schedule, optimizer


def main():
    folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 50
    paddle.seed(1234)
    model = Decoder()
    fill(model)
    schedule, optimizer = make_optimizer(model, steps)
    data = Text(BATCH * steps)
    loader = DataLoader(data, batch_sampler=BatchSampler(data, batch_size=BATCH, shuffle=False, drop_last=True))
    losses, seconds = [], []
    for step, (tokens, labels) in enumerate(loader):
        if step == steps:
            break
        if step == steps // 2:  # go on from files, as after a crash
            paddle.save(model.state_dict(), os.path.join(folder, "model.pdparams"))
            paddle.save(optimizer.state_dict(), os.path.join(folder, "model.pdopt"))
            restored = paddle.load(os.path.join(folder, "model.pdparams"))
            for parameter in model.parameters():
                parameter.set_value(paddle.zeros_like(parameter))
            model.set_state_dict(restored)
            optimizer.set_state_dict(paddle.load(os.path.join(folder, "model.pdopt")))
        begin = time.perf_counter()
        loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        seconds.append(time.perf_counter() - begin)
        losses.append(float(loss))
    model.eval()
    with paddle.no_grad():
        tokens, _ = data[0]
        guess = model(paddle.to_tensor(tokens).unsqueeze(0)).argmax(axis=-1)
    with open(os.path.join(folder, "losses.json"), "w") as file:
        json.dump({"losses": losses, "guess": guess.flatten().tolist(), "seconds": seconds}, file)
    middle = sorted(seconds)[len(seconds) // 2]
    print(f"{paddle.__name__}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {1e3 * middle:.1f} ms a step")


if __name__ == "__main__":
    main()
