"""A backend's operations on two shares of a layer, put together, are those on the whole layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from nvexplore.backends import Backend, Ranks, create_backend
from nvexplore.backends.attention.triton_paged import TritonPagedAttention
from nvexplore.backends.cuda import CudaBackend
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import RowParallelLinear
from nvexplore.layers.moe import MoE
from nvexplore.layers.parameter import Layer, Piece, Placement
from nvexplore.moe_config import MoeConfig
from nvexplore.runner.forward_batch import ForwardBatch
from tests.kernels.places import Place

TOKENS, HIDDEN, INNER, VOCAB = 9, 16, 24, 40


@dataclass
class Turns(Ranks):
    """Two ranks one after the other: what rank 0 has told, whose own results mean nothing, rank 1 finds."""

    rank: int = 0
    size: int = 2
    told: list[Tensor] = field(default_factory=list)

    def _meet(self, x: Tensor) -> Tensor | None:
        if self.rank == 0:
            self.told.append(x.clone())
            return None
        return self.told.pop(0)

    def sum(self, x: Tensor) -> Tensor:
        other = self._meet(x)
        return x if other is None else x.add_(other)

    def gather(self, x: Tensor) -> Tensor:
        other = self._meet(x)
        return torch.cat((x, x) if other is None else (other, x), dim=1)

    def share(self, x: Tensor) -> Tensor:
        other = self._meet(x)
        return x if other is None else other


@pytest.fixture(params=["cpu", "cuda"])
def make(request: pytest.FixtureRequest, place: Place) -> Callable[[Ranks], Backend]:
    """Makes the CPU's backend, or the GPU's, interpreted where there is no GPU."""

    def backend(ranks: Ranks) -> Backend:
        if request.param == "cpu":
            return create_backend(place.device, place.dtype, ranks=ranks)
        made = CudaBackend(place.device, place.dtype, TritonPagedAttention(8))
        made.ranks = ranks
        return made

    if request.param == "cpu" and place.device.type != "cpu":
        pytest.skip("a GPU runs the kernels here")
    return backend


def placements(place: Place) -> list[Placement]:
    """Of the whole, then of each half."""
    return [Placement(place.dtype, place.device), *(Placement(place.dtype, place.device, rank, 2) for rank in (0, 1))]


def fill(modules: list[nn.Module], place: Place) -> None:
    """Random weights for the first; for the others the shares of them that they load from a checkpoint."""
    values: dict[str, Tensor] = {}

    def pieces(module: nn.Module) -> list[Piece]:
        return [p for name, each in module.named_modules() if isinstance(each, Layer) for p in each.pieces(f"m.{name}")]

    for piece in pieces(modules[0]):
        values[piece.name] = place.randn(*piece.shape, scale=0.3)
    for module in modules:
        for piece in pieces(module):
            piece.target.copy_(values[piece.name].narrow(piece.dim, piece.start, piece.target.shape[piece.dim]))


def together(make: Callable[[Ranks], Backend], run: Callable[[Backend, int], Tensor]) -> tuple[Tensor, Tensor]:
    """(what rank 1 has after rank 0 has told its part, what one rank has); the module's number is 1 and 2, or 0."""
    ranks = Turns()
    run(make(ranks), 1)
    ranks.rank = 1
    found = run(make(ranks), 2)
    assert ranks.told == []
    return found, run(make(Ranks()), 0)


def near(pair: tuple[Tensor, Tensor]) -> None:
    found, expected = (x.float() for x in pair)
    tolerance = 1e-5 if pair[0].dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert float(expected.abs().max()) > 0.1


@pytest.mark.parametrize("bias", [False, True])
def test_row_parallel_linear(bias: bool, make: Callable[[Ranks], Backend], place: Place) -> None:
    """The bias is added once, to the sum."""
    layers = [RowParallelLinear(INNER, HIDDEN, bias=bias, placement=each) for each in placements(place)]
    fill([*layers], place)
    x = place.randn(TOKENS, INNER)
    inputs = [x, x[:, : INNER // 2].contiguous(), x[:, INNER // 2 :].contiguous()]
    near(together(make, lambda backend, which: backend.linear(inputs[which], layers[which])))


def test_embedding(make: Callable[[Ranks], Backend], place: Place) -> None:
    """Exactly: each id is in one share."""
    layers = [Embedding(VOCAB, HIDDEN, placement=each) for each in placements(place)]
    fill([*layers], place)
    ids = place.ints([0, 19, 20, 39, 5, 5])
    found, expected = together(make, lambda backend, which: backend.embedding(ids, layers[which]))
    assert torch.equal(found, expected) and torch.equal(ids, place.ints([0, 19, 20, 39, 5, 5]))


@pytest.mark.parametrize("rows", [None, [1, 4, 8]])
def test_logits(rows: list[int] | None, make: Callable[[Ranks], Backend], place: Place) -> None:
    """Columns of both shares in their order."""
    heads = [LMHead(VOCAB, HIDDEN, placement=each, tied_to=None) for each in placements(place)]
    fill([*heads], place)
    hidden, where = place.randn(TOKENS, HIDDEN), None if rows is None else place.ints(rows)
    found, expected = together(make, lambda backend, which: backend.logits(hidden, where, heads[which]))
    assert found.shape == (TOKENS if rows is None else len(rows), VOCAB) and found.dtype is torch.float32
    near((found, expected))


def test_experts(make: Callable[[Ranks], Backend], place: Place) -> None:
    """Every rank has a part of every expert, and the router whole."""
    config = MoeConfig(
        num_experts=4,
        num_experts_per_tok=2,
        intermediate_size=INNER,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=frozenset(),
    )
    layers = [MoE(config, HIDDEN, each) for each in placements(place)]
    fill([*layers], place)
    x = place.randn(TOKENS, HIDDEN)
    near(together(make, lambda backend, which: backend.moe(x.clone(), layers[which])))


def test_rank_0_alone_draws(make: Callable[[Ranks], Backend], place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, ids = make(ranks := Turns()), torch.tensor([3, -1, 7], device=place.device)
    logits, batch = place.randn(3, VOCAB), ForwardBatch.__new__(ForwardBatch)
    monkeypatch.setattr(backend, "sample", lambda *given: ids if given == (logits, batch) else None)
    assert backend.draw(logits, batch) is ids
    ranks.rank = 1
    monkeypatch.setattr(backend, "sample", None)
    assert torch.equal(backend.draw(logits, batch), ids)
