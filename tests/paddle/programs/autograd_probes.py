"""Small programs about gradients, hooks and layers with a backward of their own."""

import paddle
from paddle.autograd import PyLayer, PyLayerContext
from probing import leaf, main, numbers, raised


def grad_of_grad():
    x = leaf(3)
    y = (x**4).sum()
    (first,) = paddle.grad(y, x, create_graph=True)
    (second,) = paddle.grad(first.sum(), x, create_graph=True)
    (third,) = paddle.grad(second.sum(), x)
    return [first, second, third, first.stop_gradient, third.stop_gradient]


def grad_with_weights_and_lists():
    x, w = leaf(2, 3), leaf(3, 2)
    y = paddle.matmul(x, w)
    return paddle.grad([y, y * 2], [x, w], grad_outputs=[numbers(2, 2), None], retain_graph=True)


def grad_of_unused():
    x, y = leaf(2), leaf(3)
    found = paddle.grad((x * 2).sum(), [x, y], allow_unused=True)
    return [found[0], found[1] is None, raised(lambda: paddle.grad((x * 2).sum(), [y])) != "nothing"]


def grad_without_vars():
    x = leaf(2)
    y = x * 3
    (found,) = paddle.grad((y * y + x).sum(), [x], no_grad_vars=[y])
    return found


def gradients_add_up_and_clear():
    x = leaf(2)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    both = x.grad.numpy()
    x.clear_grad()
    cleared = None if x.grad is None else x.grad.numpy()
    (x * 4).sum().backward()
    kept = x.gradient()
    return [both, cleared, kept]


def backward_of_many():
    x = leaf(2, 2)
    y, z = x * 2, x * x
    paddle.autograd.backward([y, z], [numbers(2, 2), None], retain_graph=True)
    first = x.grad.numpy()
    paddle.autograd.backward([y])
    return [first, x.grad.numpy()]


def backward_of_a_matrix():
    x = leaf(2, 2)
    (x * x).backward()
    first = x.grad.numpy()
    y = x * 3
    y.backward(numbers(2, 2))
    return [first, x.grad.numpy()]


def graph_is_freed():
    x = leaf(2)
    y = (x * x).sum()
    y.backward()
    return raised(lambda: y.backward()) != "nothing"


def no_grad_in_all_forms():
    x = leaf(2)
    with paddle.no_grad():
        inside = (x * 2).stop_gradient

    @paddle.no_grad()
    def decorated(v):
        return v * 2

    with paddle.no_grad(), paddle.enable_grad():
        again = (x * 2).stop_gradient
    with paddle.set_grad_enabled(False):
        switched = (x * 2).stop_gradient
    before = paddle.is_grad_enabled()
    return [inside, decorated(x).stop_gradient, again, switched, before, (x * 2).stop_gradient]


def stop_gradient_spreads():
    x, y = leaf(2), numbers(2)
    z = x.detach()
    w = x.clone()
    return [(x + y).stop_gradient, (y + y).stop_gradient, z.stop_gradient, w.stop_gradient, x.is_leaf, w.is_leaf]


def hooks_of_tensors():
    x = leaf(2)
    seen = []
    y = x * 2
    handle = y.register_hook(lambda g: seen.append(g.numpy().tolist()) or g * 10)
    (y * 3).sum().backward()
    first = x.grad.numpy()
    handle.remove()
    x.clear_grad()
    (x * 2 * 3).sum().backward()
    return [seen, first, x.grad.numpy()]


def hooks_of_leaves():
    x = leaf(2)
    x.register_hook(lambda g: g * 2)
    (x * 3).sum().backward()
    return [x.grad.numpy(), raised(lambda: numbers(2).register_hook(lambda g: g))]


def gradients_of_results():
    x = leaf(2)
    y = x * 2
    y.retain_grads()
    (y * y).sum().backward()
    return [y.grad, x.grad]


def jacobians():
    x = leaf(3)
    y = x * x + x.sum()
    b = leaf(2, 3)
    c = (b**3).sum(-1)
    return [
        paddle.autograd.jacobian(y, x)[:],
        paddle.autograd.jacobian(b * b, b, batch_axis=0)[:],
        paddle.autograd.hessian((x**3).sum(), x)[:],
        paddle.autograd.hessian(c, b, batch_axis=0)[:],
    ]


def functional_products():
    x = numbers(3)

    def cube(v):
        return v * v * v

    value, product = paddle.incubate.autograd.vjp(cube, x, numbers(3, seed=4))
    value2, product2 = paddle.incubate.autograd.jvp(cube, x, numbers(3, seed=4))
    return [value, product, value2, product2]


def saved_tensor_hooks():
    x = leaf(2)
    log = []

    def pack(v):
        log.append("pack")
        return v.numpy()

    def unpack(v):
        log.append("unpack")
        return paddle.to_tensor(v)

    with paddle.autograd.saved_tensors_hooks(pack, unpack):
        y = x * x
    y.sum().backward()
    return [x.grad, sorted(set(log))]


def in_place_and_versions():
    x = leaf(2)
    y = x * 1
    y.add_(numbers(2))
    y.sum().backward()
    z = numbers(2)
    before = z.inplace_version
    z.add_(z)
    return [x.grad, z.inplace_version - before, raised(lambda: leaf(2).add_(numbers(2))) != "nothing"]


class Scale(PyLayer):
    @staticmethod
    def forward(ctx, x, factor=2.0, bias=None):
        ctx.factor, ctx.has_bias = factor, bias is not None
        ctx.save_for_backward(x)
        return x * factor + (0 if bias is None else bias)

    @staticmethod
    def backward(ctx, grad):
        assert len(ctx.saved_tensor()) == 1
        return (grad * ctx.factor, grad.sum()) if ctx.has_bias else grad * ctx.factor


def py_layer_forms():
    x, bias = leaf(3), leaf(1)
    Scale.apply(x).sum().backward()
    first = x.grad.numpy()
    x.clear_grad()
    Scale.apply(x, factor=5.0).sum().backward()
    second = x.grad.numpy()
    x.clear_grad()
    Scale.apply(x, 3.0, bias).sum().backward()
    return [first, second, x.grad, float(bias.grad)]


def py_layer_of_many():
    class Swap(PyLayer):
        @staticmethod
        def forward(ctx, a, b, flag, extra):
            ctx.mark_non_differentiable(extra)
            return b * 2, a * 3, extra, "text", None

        @staticmethod
        def backward(ctx, first, second, third):
            return second * 3, first * 2, None

    a, b, c = leaf(2), leaf(2, seed=1), numbers(2)
    one, two, three, text, nothing = Swap.apply(a, b, True, c)
    (one + 10 * two).sum().backward()
    return [one, two, three, text, nothing, a.grad, b.grad, three.stop_gradient]


def py_layer_without_materialized_gradients():
    class Two(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, first, second):
            return first * 0 + (7 if second is None else 1)

    x = leaf(2)
    Two.apply(x)[0].sum().backward()
    return x.grad


def py_layer_with_materialized_gradients():
    class Two(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, first, second):
            return first + second + 5

    x = leaf(2)
    Two.apply(x)[0].sum().backward()
    return x.grad


def py_layer_gradients_keep_their_dtype():
    found = []
    for consistent in (True, False):

        class Narrow(PyLayer):
            @staticmethod
            def forward(ctx, x, consistent):
                ctx.set_grad_in_dtype_consistent(consistent)
                return x.astype("float16")

            @staticmethod
            def backward(ctx, grad):
                found.append(str(grad.dtype).split(".")[-1])
                return grad.astype("float32")

        class Widen(PyLayer):
            @staticmethod
            def forward(ctx, x):
                return x.astype("float32")

            @staticmethod
            def backward(ctx, grad):
                return grad * 1e5  # too large for float16

        x = leaf(2)
        Widen.apply(Narrow.apply(x, consistent)).sum().backward()
        found.append(bool(paddle.isfinite(x.grad).all()))
        x.clear_grad()
        paddle.autograd.backward([Narrow.apply(x, consistent)], [paddle.full([2], 1e5)])
        found.append(bool(paddle.isfinite(x.grad).all()))
    return found


def py_layer_second_order():
    class Cube(PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensor()
            return 3 * x * x * grad

    x = leaf(3)
    (first,) = paddle.grad(Cube.apply(x).sum(), x, create_graph=True)
    first.sum().backward()
    return [first, x.grad]


def py_layer_errors():
    class Few(PyLayer):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Half(PyLayer):
        @staticmethod
        def forward(ctx, a):
            return a

    a, b = leaf(2), leaf(2, seed=1)
    return [
        raised(lambda: Few.apply(a, b).sum().backward()) != "nothing",
        raised(lambda: Half.apply(a * 1).sum().backward()) != "nothing",
        issubclass(PyLayerContext, object),
    ]


def hessian_of_a_sum():
    x, y = leaf(2), leaf(3)
    found = paddle.autograd.hessian(x.sum() + (y * y).sum(), (x, y))
    return [[part[:] for part in row] for row in found]


def whole_numbers_that_want_gradients():
    x = paddle.to_tensor([1, 2], stop_gradient=False)
    return x.stop_gradient


if __name__ == "__main__":
    main(globals())
