"""Transforms: the inverse goes back, and the logarithm of the determinant is that of the Jacobian."""

from typing import Any

import pytest
import torch

from oarlock.paddle import distribution as D

X = torch.tensor([0.3, 0.7, 1.9], dtype=torch.float64)
ELEMENTS: dict[str, Any] = {
    "affine": D.AffineTransform(X[0], -2 * X[1]),
    "exp": D.ExpTransform(),
    "power": D.PowerTransform(3.0),
    "sigmoid": D.SigmoidTransform(),
    "tanh": D.TanhTransform(),
    "chain": D.ChainTransform([D.AffineTransform(0.5, -2.0), D.ExpTransform(), D.SigmoidTransform()]),
}
WHOLE: dict[str, Any] = {
    "independent": D.IndependentTransform(D.ExpTransform(), 1),
    "reshape": D.ReshapeTransform([3], [3, 1]),
    "chain": D.ChainTransform([D.TanhTransform(), D.ReshapeTransform([3], [1, 3]), D.ExpTransform()]),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name: str) -> None:
    f = ELEMENTS[name]
    y = f.forward(X)
    torch.testing.assert_close(f.inverse(y), X)
    slope = torch.autograd.functional.jacobian(f.forward, X).diagonal()
    torch.testing.assert_close(f.forward_log_det_jacobian(X).expand(3), slope.abs().log())
    torch.testing.assert_close(f.inverse_log_det_jacobian(y).expand(3), -slope.abs().log())
    assert tuple(f.forward_shape((2, 3))) == (2, 3) == tuple(f.inverse_shape((2, 3)))


@pytest.mark.parametrize("name", WHOLE)
def test_whole_values(name: str) -> None:
    f = WHOLE[name]
    y = f.forward(X)
    assert tuple(f.forward_shape(X.shape)) == tuple(y.shape)
    assert tuple(f.inverse_shape(y.shape)) == tuple(X.shape)
    torch.testing.assert_close(f.inverse(y), X)
    matrix = torch.autograd.functional.jacobian(lambda x: f.forward(x).reshape(-1), X)
    torch.testing.assert_close(f.forward_log_det_jacobian(X), matrix.det().abs().log())


def test_stick_breaking() -> None:
    f = D.StickBreakingTransform()
    y = f.forward(X)
    assert y.sum().item() == pytest.approx(1.0)
    assert (y > 0).all()
    assert y.shape == (4,)
    torch.testing.assert_close(f.inverse(y), X)
    matrix = torch.autograd.functional.jacobian(lambda x: f.forward(x)[:-1], X)  # the last share follows
    torch.testing.assert_close(f.forward_log_det_jacobian(X), matrix.det().abs().log())


def test_side_by_side() -> None:
    f = D.StackTransform([D.ExpTransform(), D.TanhTransform(), D.AffineTransform(1.0, 3.0)], 1)
    x = X.expand(2, 3)
    torch.testing.assert_close(f.inverse(f.forward(x)), x)
    assert f.forward_log_det_jacobian(x).shape == (2, 3)
    with pytest.raises(ValueError, match="3 slices along axis 1"):
        f.forward(torch.zeros(2, 4))


def test_a_transformed_density_sums_to_one() -> None:
    made = D.TransformedDistribution(D.Normal(0.2, 0.5), [D.AffineTransform(0.1, 1.5), D.SigmoidTransform()])
    y = torch.linspace(1e-4, 1 - 1e-4, 20001, dtype=torch.float64)
    assert torch.trapezoid(made.prob(y), y).item() == pytest.approx(1.0, abs=1e-4)


def test_a_value_of_several_numbers() -> None:
    """An affine transform behind one of whole values, of which its determinant counts every number."""
    base = D.Normal(torch.zeros(3), torch.ones(3))
    made = D.TransformedDistribution(base, [D.StickBreakingTransform(), D.AffineTransform(0.0, 2.0)])
    plain = D.TransformedDistribution(base, [D.StickBreakingTransform()])
    y = plain.sample([5])
    assert made.event_shape == (4,)
    assert made.batch_shape == ()
    # The affine step is counted over the four shares that it moves.
    expected = plain.log_prob(y) - 4 * torch.tensor(2.0).log()
    torch.testing.assert_close(made.log_prob(2 * y), expected, rtol=1e-4, atol=1e-4)


def test_a_transform_of_a_user() -> None:
    class Cube(D.Transform):
        def _forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**3

        def _inverse(self, y: torch.Tensor) -> torch.Tensor:
            return y ** (1 / 3)

        def _inverse_log_det_jacobian(self, y: torch.Tensor) -> torch.Tensor:
            return -(3 * y ** (2 / 3)).log()

    torch.testing.assert_close(Cube().forward_log_det_jacobian(X), (3 * X**2).log())
    made = Cube()(D.Exponential(1.0))
    assert isinstance(made, D.TransformedDistribution)
    assert made.sample([3]).shape == (3,)


def test_what_has_no_determinant_says_so() -> None:
    for f in (D.AbsTransform(), D.SoftmaxTransform()):
        with pytest.raises(NotImplementedError, match="no Jacobian determinant"):
            f.forward_log_det_jacobian(X)
    with pytest.raises(TypeError, match="takes a tensor"):
        D.ExpTransform().forward(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="different numbers"):
        D.ReshapeTransform([2, 3], [4])
