"""Runs laid-out steps through a model: what every rank does. Knows no sequence and no other rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from nvexplore.backends.base import Backend
from nvexplore.models.decoder import CausalLM
from nvexplore.runner.decode_rows import DecodeBatch
from nvexplore.runner.forward_batch import ForwardBatch

Rows = Literal["all", "sampled"] | list[int]


class Execution:
    """A model on its backend; called while that is active, with steps that lie on the host."""

    check: Callable[[], None] | None = None
    """Raises where what was computed is worth nothing, since another rank has failed meanwhile. Holds no model."""

    def __init__(self, model: CausalLM, backend: Backend) -> None:
        self.backend = backend
        self._model = model
        self._begun: ForwardBatch | None = None
        self._hidden: Tensor | None = None

    def run(self, laid: ForwardBatch | DecodeBatch, size: int | None, *, is_fed: bool) -> Tensor:
        """Compute a step: sampled ids [R] int64 on the device, kept for the next one to be fed with.

        size: of the graph to run it as, or None; is_fed: some of its input is what the step before has sampled.
        """
        self.forget()
        if isinstance(laid, DecodeBatch):
            return self.backend.replay(laid)[: laid.num_rows]
        if size is not None:
            return self.backend.replay_prefill(laid, size)
        begun = self._begin(laid, is_fed)
        if begun.num_samples:
            ids = self.backend.step(self._model, begun)
        else:
            self._model.forward(self.backend, begun)
            ids = torch.empty(0, dtype=torch.int64, device=self.backend.device)
        self.backend.keep(ids)
        return ids

    def forward(self, laid: ForwardBatch) -> ForwardBatch:
        """Compute a step up to its hidden states, of which ``logits`` can be asked; returns it as it began."""
        self._begun = self._begin(laid, False)
        self._hidden = self._model.forward(self.backend, self._begun)
        return self._begun

    def logits(self, rows: Rows) -> Tensor:
        """Float32 logits [n, vocab] of the step that went ``forward``: of those of its tokens."""
        begun, hidden = self._begun, self._hidden
        assert begun is not None and hidden is not None
        where = begun.logits_rows if rows == "sampled" else None
        if isinstance(rows, list):
            where = begun.logits_rows.new_tensor(rows)
        return self.backend.logits(hidden, where, self._model.lm_head)

    def forget(self) -> None:
        """Let go of what ``forward`` has left."""
        self._begun = self._hidden = None

    def _begin(self, laid: ForwardBatch, is_fed: bool) -> ForwardBatch:
        begun = self.backend.begin(laid)
        if is_fed:
            self.backend.feed(begun)
        return begun
