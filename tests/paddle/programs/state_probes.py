"""Small programs about optimizers, schedules, clipping, files, recomputing and seeds."""

import os
import tempfile

import numpy as np
import paddle
from layer_probes import Net
from paddle import nn
from probing import filled, leaf, main, name_of, numbers, plain, raised


def optimizer_state_names():
    with paddle.utils.unique_name.guard():
        layer = filled(nn.Linear(2, 2))
        rate = paddle.optimizer.lr.StepDecay(0.1, 2)
        optimizer = paddle.optimizer.AdamW(rate, parameters=layer.parameters())
        layer(numbers(2, 2)).sum().backward()
        optimizer.step()
        rate.step()
        state = optimizer.state_dict()
    return [sorted(state), state["LR_Scheduler"]["last_epoch"], state[sorted(state)[-1]] is not None]


def optimizer_resumes():
    def run(steps, state=None):
        with paddle.utils.unique_name.guard():
            layer = filled(nn.Linear(2, 2))
            rate = paddle.optimizer.lr.NoamDecay(8, 3)
            optimizer = paddle.optimizer.AdamW(rate, parameters=layer.parameters(), weight_decay=0.1)
            start = 0
            if state is not None:
                layer.set_state_dict(state[0])
                optimizer.set_state_dict(state[1])
                start = 2
            for number in range(start, start + steps):
                layer(numbers(2, 2, seed=number)).square().mean().backward()
                optimizer.step()
                optimizer.clear_grad()
                rate.step()
            return layer, optimizer

    whole, _ = run(4)
    half, optimizer = run(2)
    with tempfile.TemporaryDirectory() as folder:
        paddle.save(half.state_dict(), os.path.join(folder, "m.pdparams"))
        paddle.save(optimizer.state_dict(), os.path.join(folder, "m.pdopt"))
        state = [paddle.load(os.path.join(folder, name)) for name in ("m.pdparams", "m.pdopt")]
    resumed, optimizer = run(2, state)
    return [whole.weight, float(abs(whole.weight - resumed.weight).max()) < 1e-6, optimizer.get_lr()]


def optimizer_groups():
    one, two = filled(nn.Linear(2, 2)), filled(nn.Linear(2, 1))
    optimizer = paddle.optimizer.AdamW(
        learning_rate=0.1,
        parameters=[
            {"params": one.parameters(), "weight_decay": 0.0, "learning_rate": 0.1},
            {"params": two.parameters()},
        ],
        weight_decay=0.5,
    )
    two(one(numbers(3, 2))).sum().backward()
    optimizer.step()
    return [one.weight, two.weight]


def optimizer_decay_for_some():
    with paddle.utils.unique_name.guard():
        layer = filled(nn.Linear(2, 2))
        optimizer = paddle.optimizer.AdamW(
            0.1,
            parameters=layer.parameters(),
            weight_decay=0.5,
            apply_decay_param_fun=lambda name: name.endswith("w_0"),
        )
        layer(numbers(3, 2)).sum().backward()
        optimizer.step()
        return [layer.weight, layer.bias]


def optimizer_forms():
    layer = filled(nn.Linear(2, 2))
    optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=layer.parameters(), use_nesterov=True)
    loss = layer(numbers(3, 2)).sum()
    loss.backward()
    optimizer.minimize(loss)
    optimizer.clear_gradients()
    optimizer.set_lr(0.5)
    return [layer.weight, optimizer.get_lr(), raised(lambda: paddle.optimizer.SGD(0.1)) != "nothing"]


def clips_of_all_kinds():
    found = []
    for clip in (nn.ClipGradByValue(0.1), nn.ClipGradByNorm(0.1), nn.ClipGradByGlobalNorm(0.1)):
        layer = filled(nn.Linear(2, 2))
        optimizer = paddle.optimizer.SGD(1.0, parameters=layer.parameters(), grad_clip=clip)
        layer(numbers(3, 2)).sum().backward()
        optimizer.step()
        found.append(layer.weight)
    return found


def schedulers_step_and_resume():
    found = []
    for rate in (
        paddle.optimizer.lr.CosineAnnealingDecay(1.0, 5),
        paddle.optimizer.lr.LinearWarmup(paddle.optimizer.lr.StepDecay(1.0, 2), 3, 0.0, 1.0),
        paddle.optimizer.lr.ReduceOnPlateau(1.0, patience=1),
    ):
        values = []
        for _ in range(6):
            values.append(rate())
            if isinstance(rate, paddle.optimizer.lr.ReduceOnPlateau):
                rate.step(1.0)
            else:
                rate.step()
        state = rate.state_dict()
        found.append([values, rate.last_epoch, rate.last_lr, "last_epoch" in state])
    return found


def files_of_all_kinds():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "deep", "file.pdparams")
        value = {
            "a": numbers(2, 2),
            "b": {"c": [paddle.arange(3), 1, "text", 2.5, True, None]},
            "d": paddle.ones([2], "bfloat16"),
            "e": np.arange(2),
        }
        paddle.save(value, path)
        back = paddle.load(path)
        arrays = paddle.load(path, return_numpy=True)
        paddle.save(paddle.arange(4), path)
        single = paddle.load(path)
    return [back["a"], back["b"], name_of(back["d"]), plain(back["e"]), type(arrays["a"]).__name__, single]


def files_of_layers():
    net, other = filled(Net()), Net()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.pdparams")
        paddle.save(net.state_dict(), path)
        other.set_state_dict(paddle.load(path))
        missing = raised(lambda: paddle.load(os.path.join(folder, "none"))) != "nothing"
    net.eval()
    other.eval()
    x = numbers(2, 3)
    return [float(abs(net(x) - other(x)).max()), missing]


def recompute_is_equal():
    from paddle.distributed.fleet.utils import recompute

    net, x = filled(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1))), leaf(2, 3)
    recompute(net, x).sum().backward()
    first = [x.grad.numpy(), net[0].weight.grad.numpy()]
    x.clear_grad()
    net.clear_gradients()
    net(x).sum().backward()
    return [first, bool(np.array_equal(first[0], x.grad.numpy()))]


def seeds_repeat():
    paddle.seed(5)
    one = paddle.randn([3])
    paddle.seed(5)
    two = paddle.randn([3])
    state = paddle.get_rng_state()
    three = paddle.rand([2])
    paddle.set_rng_state(state)
    return [bool((one == two).all()), bool((paddle.rand([2]) == three).all())]


def optimizer_in_two_parts():
    layer = filled(nn.Linear(2, 2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    loss = layer(numbers(3, 2)).sum()
    loss.backward()
    pairs = optimizer.backward(loss)
    optimizer.apply_gradients([(parameter, gradient * 2) for parameter, gradient in pairs])
    return [len(pairs), layer.weight, layer.weight.grad]


def optimizer_of_sparse_embeddings():
    table = nn.Embedding(4, 2, sparse=True)
    table.weight.set_value(numbers(4, 2))
    optimizer = paddle.optimizer.SGD(0.1, parameters=table.parameters())
    table(paddle.to_tensor([1, 1, 3])).sum().backward()
    optimizer.step()
    return table.weight


def helpers_of_programs():
    return [
        raised(lambda: paddle.utils.require_version("99.0")) != "nothing",
        raised(lambda: paddle.utils.require_version("2.0.0")),
        raised(lambda: paddle.utils.try_import("no_such_module")),
        paddle.utils.try_import("json").__name__,
    ]


def files_with_arrays():
    """Arrays stay arrays beside tensors, of dtypes too that tensors do not have; numbers of numpy become plain."""
    value = {
        "w": numbers(2),
        "state": [np.arange(3, dtype="uint32"), np.array([1, 2], "uint16"), np.array([0.5])],
        "loss": np.float32(1.5),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.pd")
        paddle.save(value, path)
        back = paddle.load(path)
    return [back["w"], [[str(each.dtype), each.tolist()] for each in back["state"]], float(back["loss"])]


def _weights_of_steps(make, steps):
    """A layer's weights after each step of an optimizer that `make` makes of it."""
    layer = filled(nn.Linear(2, 2))
    optimizer = make(layer)
    found = []
    for step in range(steps):
        layer(numbers(3, 2, seed=step)).square().sum().backward()
        found.append(optimizer(layer))
    return found


def looking_ahead():
    def make(layer):
        inner = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        optimizer = paddle.incubate.LookAhead(inner, alpha=0.3, k=3)

        def step(layer):
            optimizer.step()
            optimizer.clear_grad()
            return layer.weight.numpy().tolist()

        return step

    return _weights_of_steps(make, 8)


def averages():
    def make(layer):
        optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
        mean = paddle.incubate.ModelAverage(
            0.5, parameters=layer.parameters(), min_average_window=2, max_average_window=4
        )

        def step(layer):
            optimizer.step()
            mean.step()
            optimizer.clear_grad()
            before = layer.weight.numpy().tolist()
            with mean.apply():
                averaged = layer.weight.numpy().tolist()
            return [before, averaged, layer.weight.numpy().tolist() == before]

        return step

    return _weights_of_steps(make, 12)


if __name__ == "__main__":
    main(globals())
