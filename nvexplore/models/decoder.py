"""The transformer that all supported architectures share, written as operations of a backend.

Read it from ``CausalLM.forward``. It knows neither device nor kernel: every value is computed by a method of
``Backend``. Modules are named as in Hugging Face checkpoints, so a module's path is its tensors' prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from nvexplore.backends.base import Backend
from nvexplore.layers.attention import Attention
from nvexplore.layers.embedding import Embedding, LMHead
from nvexplore.layers.linear import ColumnParallelLinear, RowParallelLinear
from nvexplore.layers.moe import MoE
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.parameter import Layer, Piece, Placement
from nvexplore.layers.rotary import RotaryTable
from nvexplore.model_config import ModelConfig
from nvexplore.runner.forward_batch import ForwardBatch


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = ColumnParallelLinear(
            config.hidden_size,
            {"gate_proj": size, "up_proj": size},
            bias=config.mlp_bias,
            placement=placement,
        )
        self.down_proj = RowParallelLinear(size, config.hidden_size, bias=config.mlp_bias, placement=placement)

    def forward(self, backend: Backend, x: Tensor) -> Tensor:
        return backend.linear(backend.gated_linear(x, self.gate_up_proj), self.down_proj)


class SparseMLP(MoE):
    """The feed-forward network of a mixture of experts."""

    def forward(self, backend: Backend, x: Tensor) -> Tensor:
        return backend.moe(x, self)


class DecoderLayer(nn.Module):
    """Attention, then the feed-forward network, each on a normalised copy of the residual stream.

    ``hidden`` is what the last block produced and nobody has added to ``residual`` yet: adding it and
    normalising the sum are one operation, at the start of the next block.
    """

    mlp: GatedMLP | SparseMLP

    def __init__(self, config: ModelConfig, number: int, rotary: RotaryTable, placement: Placement) -> None:
        super().__init__()
        hidden_size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden_size, eps, placement=placement)
        self.self_attn = Attention(config, rotary, placement)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps, placement=placement)
        if config.moe is not None and config.moe.has_experts(number):
            self.mlp = SparseMLP(config.moe, hidden_size, placement)
        else:
            self.mlp = GatedMLP(config, placement)

    def forward(
        self, backend: Backend, hidden: Tensor, residual: Tensor | None, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        attn = self.self_attn
        hidden, residual = backend.add_rms_norm(hidden, residual, self.input_layernorm)
        qkv = backend.linear(hidden, attn.qkv_proj)
        q = backend.qk_norm_rope_store(qkv, attn, batch)
        hidden = backend.linear(backend.attention(q, attn, batch), attn.o_proj)
        hidden, residual = backend.add_rms_norm(hidden, residual, self.post_attention_layernorm)
        return self.mlp.forward(backend, hidden), residual


class Decoder(nn.Module):
    """Embedding, layers and the last norm; all layers share one table of rotary angles."""

    def __init__(self, config: ModelConfig, max_positions: int, placement: Placement) -> None:
        super().__init__()
        rotary = RotaryTable(config.rope, config.head_dim, max_positions, placement.device)
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, placement=placement)
        self.layers = nn.ModuleList(
            DecoderLayer(config, number, rotary, placement) for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement=placement)


class CausalLM(nn.Module):
    """A decoder and its LM head. Parameters are NaN until they are loaded (``pieces`` says from what).

    max_positions: positions below it can be run; the rotary table has that many rows.
    """

    def __init__(self, config: ModelConfig, *, max_positions: int, placement: Placement) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, max_positions, placement)
        self.lm_head = LMHead(
            config.vocab_size,
            config.hidden_size,
            placement=placement,
            tied_to=self.model.embed_tokens if config.tie_word_embeddings else None,
        )

    def forward(self, backend: Backend, batch: ForwardBatch) -> Tensor:
        """Run a begun batch; returns the normalised hidden states [T, hidden] that the LM head takes."""
        hidden = backend.embedding(batch.input_ids, self.model.embed_tokens)
        residual = None
        for layer in self.decoder_layers():
            hidden, residual = backend.decoder_layer(layer, hidden, residual, batch)
        return backend.add_rms_norm(hidden, residual, self.model.norm)[0]

    def decoder_layers(self) -> Iterator[DecoderLayer]:
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def attentions(self) -> list[Attention]:
        """The attention of each layer, in order."""
        return [layer.self_attn for layer in self.decoder_layers()]

    def pieces(self) -> Iterator[Piece]:
        """Yield every tensor that a checkpoint of this model has, and where it goes."""
        for name, module in self.named_modules():
            if isinstance(module, Layer):
                yield from module.pieces(name)
