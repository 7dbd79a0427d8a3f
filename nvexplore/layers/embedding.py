"""The token embedding and the LM head, split over ranks by vocabulary; a tied head is the embedding."""

from __future__ import annotations

from collections.abc import Iterator

from nvexplore.layers.parameter import Layer, Piece, Placement, new_parameter


class Embedding(Layer):
    """One row of ``weight`` [vocab of this rank, hidden] a token id; this rank's first id is ``first_id``."""

    def __init__(self, vocab_size: int, hidden_size: int, *, placement: Placement) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.first_id, count = placement.share(vocab_size, "vocab_size")
        self.gathers_ranks = placement.size > 1
        self.weight = new_parameter(placement, count, hidden_size)

    def pieces(self, name: str) -> Iterator[Piece]:
        shape = (self.vocab_size, self.weight.shape[1])
        yield Piece(f"{name}.weight", self.weight.data, shape, 0, self.first_id)


class LMHead(Embedding):
    """Logits are hidden states times ``weight``, which with ``tied_to`` is that embedding's, not a copy."""

    def __init__(self, vocab_size: int, hidden_size: int, *, placement: Placement, tied_to: Embedding | None) -> None:
        if tied_to is None:
            super().__init__(vocab_size, hidden_size, placement=placement)
        else:
            Layer.__init__(self)
            self.vocab_size, self.first_id = vocab_size, tied_to.first_id
            self.gathers_ranks, self.weight = tied_to.gathers_ranks, tied_to.weight
        self.is_tied = tied_to is not None

    def pieces(self, name: str) -> Iterator[Piece]:
        for piece in super().pieces(name):
            yield piece._replace(is_tied=self.is_tied)
