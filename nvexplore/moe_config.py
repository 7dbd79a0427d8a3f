"""The experts of a mixture-of-experts model as config.json describes them. Knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvexplore.checks import check_int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Which layers have experts instead of one feed-forward network, and how a token chooses among them.

    num_experts:         experts of a layer; num_experts_per_tok: how many a token goes to.
    intermediate_size:   of each expert; layers without experts have ``ModelConfig.intermediate_size``.
    norm_topk_prob:      whether the weights of a token's experts are scaled to sum to 1.
    decoder_sparse_step: every so many layers have experts (1: all); mlp_only_layers: never these.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: frozenset[int]

    def has_experts(self, layer: int) -> bool:
        """Return whether layer number ``layer``, from 0, is a mixture of experts."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MoeConfig | None:
        """Read it from a parsed config.json with its defaults filled in; None where there are 0 experts.

        The ValueError or TypeError names the key that is wrong.
        """
        num_experts = _number_of_experts(config)
        if num_experts == 0:
            return None
        norm = config["norm_topk_prob"]
        if not isinstance(norm, bool):
            raise TypeError(f"norm_topk_prob={norm!r}: must be true or false")
        dense = config.get("mlp_only_layers") or []
        if not isinstance(dense, list):
            raise TypeError(f"mlp_only_layers={dense!r}: must be a list of layer numbers")
        return cls(
            num_experts=num_experts,
            num_experts_per_tok=check_int(
                "num_experts_per_tok", config["num_experts_per_tok"], minimum=1, maximum=num_experts
            ),
            intermediate_size=check_int("moe_intermediate_size", config["moe_intermediate_size"], minimum=1),
            norm_topk_prob=norm,
            decoder_sparse_step=check_int("decoder_sparse_step", config["decoder_sparse_step"], minimum=1),
            mlp_only_layers=frozenset(check_int("mlp_only_layers", layer, minimum=0) for layer in dense),
        )


def _number_of_experts(config: Mapping[str, Any]) -> int:
    # transformers reads num_experts and writes num_local_experts.
    given = {
        key: check_int(key, config[key], minimum=0)
        for key in ("num_experts", "num_local_experts")
        if config.get(key) is not None
    }
    if not given:
        raise ValueError("config.json has neither num_experts nor num_local_experts")
    if len(set(given.values())) > 1:
        raise ValueError(f"{' but '.join(f'{key}={value}' for key, value in given.items())}: the two names disagree")
    return next(iter(given.values()))
