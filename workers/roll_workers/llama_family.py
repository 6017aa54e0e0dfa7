"""Which models are computed by passes of our own, in the engine and in the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

FAMILY = ("LlamaForCausalLM", "Qwen2ForCausalLM")
STATIC_ROTATIONS = ("default", "linear", "llama3", "yarn")  # others depend on the sequence's length


def is_llama(model: Any) -> bool:
    """A model on a CPU in float32 that does what the family's plain architecture does, and no more."""
    config, weight = model.config, next(model.parameters())
    if type(model).__name__ not in FAMILY or weight.device.type != "cpu":
        return False
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    biased = [
        linear.bias is not None
        for layer in model.model.layers
        for linear in (layer.self_attn.o_proj, *layer.mlp.children())
        if isinstance(linear, nn.Linear)
    ]
    return (
        weight.dtype is torch.float32
        and getattr(model.model.rotary_emb, "rope_type", "") in STATIC_ROTATIONS
        and config.hidden_act == "silu"
        and set(kinds) == {"full_attention"}
        and not any(biased)
    )
