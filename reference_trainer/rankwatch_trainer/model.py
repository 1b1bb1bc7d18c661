"""A small byte-level GPT: pre-norm transformer blocks, learned positions, cross-entropy loss."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""One token per byte value."""


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a layer norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) in and out."""
        x = x + self._attend(self.attention_norm(x))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]

    def _attend(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        split = self.query_key_value(x).view(batch, context, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.attention_out(attended.transpose(1, 2).reshape(batch, context, width))
        return out


class GPT(nn.Module):
    """Predicts the next byte of a text, through blocks that map (batch, context, width) to the same."""

    def __init__(self, blocks: Iterable[nn.Module], *, width: int, context: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
        self.apply(_initialise)

    def forward(self, text: Tensor) -> Tensor:
        """Mean cross-entropy in nats per byte; text is (batch, context + 1) byte values."""
        tokens, targets = text[:, :-1], text[:, 1:]
        x = self.token_embedding(tokens) + self.position_embedding.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module) -> None:
    """Normal weights of deviation 0.02 and zero biases, as GPT-2 does."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
