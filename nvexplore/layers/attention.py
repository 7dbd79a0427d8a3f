"""The parameters of one attention layer, and its view of the paged KV cache."""

from __future__ import annotations

from torch import Tensor

from nvexplore.layers.linear import ColumnParallelLinear, RowParallelLinear
from nvexplore.layers.norm import RMSNorm
from nvexplore.layers.parameter import Layer, Placement
from nvexplore.layers.rotary import RotaryTable
from nvexplore.model_config import ModelConfig


class Attention(Layer):
    """Grouped-query attention; counts are those of this rank. Where there are fewer KV heads than ranks, each has one.

    num_heads, num_kv_heads, head_dim: query head h reads KV head h // (num_heads / num_kv_heads).
    scale:            scores are multiplied by it before the softmax.
    q_norm, k_norm:   over each head, or None.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], views that ``KVCache.bind`` sets.
    """

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: ModelConfig, rotary: RotaryTable, placement: Placement) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_heads = placement.share(config.num_attention_heads, "num_attention_heads")[1]
        kv_head, self.num_kv_heads = placement.share_or_copy(config.num_key_value_heads, "num_key_value_heads")
        self.scale = config.head_dim**-0.5
        self.rotary = rotary
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        kv_share = kv_head * config.head_dim, self.num_kv_heads * config.head_dim
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size,
            {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=config.qkv_bias,
            placement=placement,
            shares={"k_proj": kv_share, "v_proj": kv_share},
        )
        self.o_proj = RowParallelLinear(q_size, config.hidden_size, bias=config.o_bias, placement=placement)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, placement=placement)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, placement=placement)
