"""Small programs about layers: their parts, names, hooks, states, dtypes."""

import contextlib
import io

import paddle
from paddle import nn
from probing import filled, main, name_of, numbers, raised

F = nn.functional


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1D(4)
        self.second = nn.LayerList([nn.Linear(4, 2), nn.Linear(2, 2)])
        self.scale = self.create_parameter([2], default_initializer=nn.initializer.Constant(2.0))
        self.register_buffer("steps", paddle.zeros([1]))
        self.register_buffer("hidden", paddle.zeros([1]), persistable=False)

    def forward(self, x, twice=False):
        y = F.relu(self.norm(self.first(x)))
        for layer in self.second:
            y = layer(y)
        return y * self.scale * (2 if twice else 1)


def layer_names():
    net = Net()
    return [
        list(net.state_dict()),
        [name for name, _ in net.named_parameters()],
        [name for name, _ in net.named_buffers()],
        [name for name, _ in net.named_sublayers()],
        [name for name, _ in net.named_sublayers(include_self=True)],
        [name for name, _ in net.named_children()],
        [type(layer).__name__ for layer in net.sublayers()],
        len(net.parameters()),
        len(net.parameters(include_sublayers=False)),
        [list(p.shape) for p in net.parameters()],
        [name for name, _ in net.named_parameters(prefix="model")],
        list(net.state_dict(structured_name_prefix="p.")),
    ]


def layer_modes():
    net = Net()
    states = [net.training, net.norm.training]
    net.eval()
    states += [net.training, net.norm.training]
    net.train()
    return [*states, net.training, net.norm.training]


def layer_state_returns_what_is_missing():
    net = Net()
    state = net.state_dict()
    state.pop("scale")
    state["other"] = paddle.zeros([1])
    missing, unexpected = net.set_state_dict(state)
    return [missing, unexpected]


def layer_hooks():
    net = filled(Net())
    net.eval()
    x = numbers(2, 3)
    log = []
    handles = [
        net.register_forward_pre_hook(lambda layer, inputs: log.append("pre")),
        net.register_forward_pre_hook(lambda layer, inputs: log.append("first"), prepend=True),
        net.register_forward_pre_hook(lambda layer, args, kwargs: log.append(sorted(kwargs)), with_kwargs=True),
        net.register_forward_post_hook(lambda layer, inputs, outputs: outputs * 10),
        net.register_forward_post_hook(lambda layer, args, kwargs, outputs: log.append(len(args)), with_kwargs=True),
        net.register_forward_post_hook(lambda layer, inputs, outputs: log.append("front"), prepend=True),
    ]
    first = net(x, twice=True)
    for handle in handles:
        handle.remove()
    return [first, net(x), log]


def layer_hook_changes_inputs():
    layer = filled(nn.Linear(2, 2))
    layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 0,))
    return layer(numbers(1, 2))


def layer_hook_that_is_always_called():
    class Broken(nn.Layer):
        def forward(self, x):
            raise RuntimeError("broken")

    layer = Broken()
    log = []
    layer.register_forward_post_hook(lambda *given: log.append("called"), always_call=True)
    return [raised(lambda: layer(numbers(2))), log]


def layer_parts_replaced():
    net = Net()
    net.first = nn.Linear(3, 4, bias_attr=False)
    net.add_sublayer("extra", nn.ReLU())
    net.add_parameter("gain", net.create_parameter([1]))
    del net.scale
    net.lam = None
    return [list(net.state_dict()), hasattr(net, "scale"), net.first.bias is None]


def layer_applied():
    net = Net()

    def zero(layer):
        if isinstance(layer, nn.Linear):
            layer.weight.set_value(paddle.zeros_like(layer.weight))

    net.apply(zero)
    return float(sum(p.abs().sum() for name, p in net.named_parameters() if name.endswith("weight") and p.ndim == 2))


def layer_dtypes():
    net = Net()
    net.to(dtype="float64")
    first = [name_of(p) for p in net.parameters()]
    net.float()
    net.bfloat16()
    return [first, [name_of(p) for p in net.parameters()], [name_of(b) for b in net.buffers()]]


def layer_containers():
    numbered = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    named = nn.Sequential(("a", nn.Linear(2, 3)), ("b", nn.Tanh()))
    lists = nn.LayerList([nn.Linear(1, 1) for _ in range(3)])
    lists.append(nn.Linear(1, 2))
    lists.insert(0, nn.Linear(1, 3))
    lists.extend([nn.ReLU()])
    dicts = nn.LayerDict({"x": nn.Linear(1, 1), "y": nn.ReLU()})
    dicts["z"] = nn.Tanh()
    dicts.pop("y")
    parameters = nn.ParameterList([paddle.create_parameter([2], "float32") for _ in range(2)])
    return [
        list(numbered.state_dict()),
        list(named.state_dict()),
        list(lists.state_dict()),
        len(lists),
        [type(each).__name__ for each in lists[1:3]],
        list(dicts.keys()),
        list(dicts.state_dict()),
        list(parameters.state_dict()),
        len(numbered),
        type(numbered[1]).__name__,
        type(named["a"]).__name__ if hasattr(named, "__getitem__") else None,
    ]


def layer_full_names():
    with paddle.utils.unique_name.guard():
        net = Net()
        return [net.full_name(), net.first.full_name(), [p.name for p in net.parameters()]]


def layer_attributes_of_parameters():
    with paddle.utils.unique_name.guard():
        layer = nn.Linear(
            2,
            2,
            weight_attr=paddle.ParamAttr(name="w", initializer=nn.initializer.Constant(0.5), learning_rate=0.1),
            bias_attr=paddle.ParamAttr(trainable=False, regularizer=paddle.regularizer.L2Decay(0.1)),
        )
    return [
        layer.weight.name,
        layer.weight,
        layer.weight.optimize_attr["learning_rate"],
        layer.bias.stop_gradient,
        layer.bias.trainable,
        len([p for p in layer.parameters() if not p.stop_gradient]),
        layer.weight.persistable,
        layer.weight.is_leaf,
    ]


def layer_gradients_cleared():
    layer = filled(nn.Linear(2, 1))
    layer(numbers(3, 2)).sum().backward()
    layer.clear_gradients()
    return layer.weight.grad


def layer_errors():
    net = Net()
    return [
        raised(lambda: net.set_state_dict({"scale": paddle.zeros([3])})),
        raised(lambda: net.nothing),
        raised(lambda: nn.LayerList([nn.ReLU()])[3]),
        raised(lambda: net(numbers(2, 5))) != "nothing",
    ]


def layer_sequences_grow():
    layers = nn.Sequential(nn.ReLU())
    layers.insert(0, nn.Linear(2, 3))
    layers.append(nn.Tanh())
    layers.extend([nn.Linear(3, 1)])
    return [list(layers.state_dict()), [type(each).__name__ for each in layers], layers(numbers(4, 2)).shape]


def layer_static_states():
    net = Net()
    return [sorted(net.to_static_state_dict()), sorted(net.state_dict())]


def layer_made_lazily():
    with paddle.LazyGuard():
        layer = nn.Linear(3, 2, weight_attr=nn.initializer.Constant(0.5))
    shapes = [list(p.shape) for p in layer.parameters()]
    for parameter in layer.parameters():
        parameter.initialize()
    return [shapes, layer(numbers(2, 3))]


def layers_of_detectors():
    x, boxes, count = numbers(1, 8, 8, 8), paddle.to_tensor([[1.0, 1.0, 6.0, 5.0]]), paddle.to_tensor([1], "int32")
    found = [layer(2, 0.5)(x, boxes, count) for layer in (paddle.vision.ops.RoIAlign, paddle.vision.ops.RoIPool)]
    found.append(paddle.vision.ops.PSRoIPool(2, 0.5)(x, boxes, count))
    deformable = filled(paddle.vision.ops.DeformConv2D(8, 2, 3))
    return [*found, deformable(x, numbers(1, 18, 6, 6), numbers(1, 9, 6, 6)), list(deformable.state_dict())]


def losses_by_old_names():
    return nn.loss.MSELoss()(numbers(3), numbers(3, seed=2))


def smoothed_labels():
    x, labels = numbers(4, 3), paddle.to_tensor([0, 2, 1, 1])
    soft = F.one_hot(labels, 3)
    return [F.cross_entropy(x, labels, label_smoothing=0.4), F.cross_entropy(x, soft, label_smoothing=0.4)]


def tensors_have_names():
    x = numbers(2)
    x.name = "mine"
    return [x.name, numbers(2).name != numbers(2).name, isinstance(numbers(2).name, str)]


class Small(nn.Layer):
    """Two inputs, a part that is not trained, and layers in layers."""

    def __init__(self):
        super().__init__()
        self.attend = nn.TransformerEncoderLayer(4, 2, 8)
        self.linear, self.table, self.norm = nn.Linear(4, 3), nn.Embedding(10, 3), nn.LayerNorm(3)
        self.table.weight.stop_gradient = True

    def forward(self, x, i):
        return self.norm(self.linear(self.attend(x)) + self.table(i))


def summaries():
    def table(*args, **kwargs):
        with paddle.utils.unique_name.guard(), contextlib.redirect_stdout(io.StringIO()) as printed:
            net, *rest = args
            counts = paddle.summary(net(), *rest, **kwargs)
        return [printed.getvalue().splitlines(), {key: int(value) for key, value in counts.items()}]

    def convolutions():
        features = nn.Sequential(nn.Conv2D(1, 6, 3, padding=1), nn.BatchNorm2D(6), nn.ReLU(), nn.MaxPool2D(2, 2))
        return nn.Sequential(features, nn.Flatten(), nn.Linear(6 * 14 * 14, 10))

    return [
        table(convolutions, (1, 1, 28, 28)),
        table(Small, [(2, 5, 4), (2, 5)], dtypes=["float32", "int64"]),
        table(lambda: nn.Linear(4, 3), (None, 4)),
        table(lambda: nn.Linear(4, 3), input=numbers(7, 4)),
        table(lambda: nn.LSTM(4, 3), (2, 5, 4)),
        raised(lambda: paddle.summary(nn.Linear(4, 3))),
        raised(lambda: paddle.summary(nn.Linear(4, 3), (0, 4))),
    ]


if __name__ == "__main__":
    main(globals())
