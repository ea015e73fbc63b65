"""``LlamaForCausalLM`` of transformers, in PyTorch: the forward pass, through torch.export."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


class Logits(torch.nn.Module):
    """Llama without cache, from ids to logits."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens: Any) -> Any:
        """Logits, ``[batch, sequence, vocab]``."""
        return self.llama(input_ids=tokens, use_cache=False).logits


def make(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    key_heads: int = 2,
    vocab: int = 256,
    batch: int = 8,
    sequence: int = 16,
) -> tuple[Any, Any]:
    """Grouped-query attention, rotary embeddings, gated MLP."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocab,
        max_position_embeddings=sequence,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return Logits(config).eval(), (torch.zeros(batch, sequence, dtype=torch.int64),)
