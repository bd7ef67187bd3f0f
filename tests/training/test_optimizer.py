"""Muon and Adam: what is orthogonal, what goes down, and what is kept between runs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from training.codec import make_codec
from training.optimizer import Optimizer, optimizer_of, orthogonal
from training.shape import sizes_of

BETAS = (0.9, 0.95)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 64), (2, 64, 8), (1, 1, 12), (1, 48, 96)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_singular_values_become_near_one(shape: tuple[int, ...], scale: float) -> None:
    given = random(*shape)
    values = torch.linalg.svdvals(orthogonal(scale * given))
    assert values.shape == (shape[0], min(shape[1:]))
    # The five iterations of Jordan et al. end between 0.7 and 1.2; the least of a square matrix,
    # near zero to begin with, may have some way to go.
    assert values.max() < 1.25
    assert values.quantile(0.2) > 0.6
    assert torch.linalg.svdvals(given).quantile(0.2) > 0


def test_singular_vectors_stay() -> None:
    left, _ = torch.linalg.qr(random(1, 12, 12))
    right, _ = torch.linalg.qr(random(1, 12, 12, seed=1))
    found = left.mT @ orthogonal(left @ torch.diag(torch.linspace(1, 2, 12)) @ right) @ right.mT
    off_diagonal = found - torch.diag_embed(found.diagonal(dim1=1, dim2=2))
    assert off_diagonal.abs().max() < 1e-3


def quadratic() -> tuple[list[nn.Parameter], list[nn.Parameter], list[Tensor]]:
    shapes = [(6, 4), (6, 4), (3, 8), (5,)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    wanted = [random(*shape, seed=index) for index, shape in enumerate(shapes)]
    return parameters[:3], parameters[3:], wanted


def distances(parameters: list[nn.Parameter], wanted: list[Tensor]) -> Tensor:
    differences = zip(parameters, wanted, strict=True)
    return torch.stack([(value - target).square().sum() for value, target in differences])


def descend(optimizer: Optimizer, parameters: list[nn.Parameter], wanted: list[Tensor]) -> None:
    optimizer.zero()
    distances(parameters, wanted).sum().backward()
    optimizer.step()


def test_a_quadratic_goes_down_in_every_parameter() -> None:
    matrices, others, wanted = quadratic()
    optimizer = Optimizer(matrices, others, BETAS)
    before = distances([*matrices, *others], wanted)
    for step in range(200):
        optimizer.rate.fill_(0.1 * (1 - step / 200))
        descend(optimizer, [*matrices, *others], wanted)
    assert (distances([*matrices, *others], wanted) < 0.01 * before).all()


def test_at_the_rate_zero_nothing_moves() -> None:
    matrices, others, wanted = quadratic()
    optimizer = Optimizer(matrices, others, BETAS)
    descend(optimizer, [*matrices, *others], wanted)
    assert all(not value.any() for value in [*matrices, *others])


def test_steps_do_not_grow_with_the_gradient() -> None:
    """The norm of all gradients together is clipped, and Muon's update has no scale of its own."""
    moved = []
    for scale in (10.0, 1000.0):
        weight = nn.Parameter(torch.zeros(4, 4))
        optimizer = Optimizer([weight], [], BETAS)
        optimizer.rate.fill_(0.1)
        (scale * random(4, 4) * weight).sum().backward()
        optimizer.step()
        moved.append(weight.detach())
    torch.testing.assert_close(*moved)
    assert moved[0].abs().max() > 0


def test_a_state_goes_on_as_if_never_interrupted() -> None:
    results = []
    for interrupted in (False, True):
        matrices, others, wanted = quadratic()
        parameters = [*matrices, *others]
        optimizer = Optimizer(matrices, others, BETAS)
        for step in range(6):
            if interrupted and step == 3:
                kept = {name: value.clone() for name, value in optimizer.state().items()}
                optimizer = Optimizer(matrices, others, BETAS)
                optimizer.load(kept)
            optimizer.rate.fill_(0.05)
            descend(optimizer, parameters, wanted)
        results.append([value.detach().clone() for value in parameters])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert len(kept) == 2 + 1 + 2  # momenta of two shapes, steps, mean and square of a vector


def test_a_state_that_lacks_something_is_not_taken() -> None:
    matrices, others, _ = quadratic()
    optimizer = Optimizer(matrices, others, BETAS)
    with pytest.raises(KeyError, match="steps"):
        optimizer.load({})


def test_muon_trains_the_matrices_inside_layers_and_nothing_else() -> None:
    codec = make_codec(*sizes_of(1, 1), 1)
    optimizer = optimizer_of(codec, BETAS)
    momenta = [v for name, v in optimizer.state().items() if name.startswith("momenta")]
    inner = [
        value for name, value in codec.named_parameters() if ".layers." in name and value.dim() == 2
    ]
    assert sum(momentum.numel() for momentum in momenta) == sum(value.numel() for value in inner)
    plain = optimizer_of(codec, BETAS, muon=False).state()
    assert not any(name.startswith("momenta") for name in plain)
