"""nn.MultiheadAttention with some of its heads, each of its own size.

torch's class computes the size of a head from the embedding and the number of heads, so it cannot run with fewer.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def keep_head_size(attention: nn.MultiheadAttention) -> None:
    """Let `attention`, whose projections are cut to `num_heads` heads, compute with heads of `head_dim`."""
    attention.__class__ = CutAttention
    # The fused kernels of nn.TransformerEncoderLayer take the size of a head from the embedding too.
    attention._qkv_same_embed_dim = False


class CutAttention(nn.MultiheadAttention):
    """Attention of `num_heads` heads of `head_dim`; every argument is as in nn.MultiheadAttention.

    A mask for each head is refused: the caller makes it for all heads.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` [b, l, e] to `key` and `value` [b, s, e]; returns the outputs and weights [b, l, s].

        Without `batch_first` the first two dimensions change places; one sample may come without b.

        Raises:
            ValueError: for a mask of each head.
        """
        single = query.dim() == 2
        if single:
            query, key, value = (part.unsqueeze(0) for part in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        heads = self._projected(query, key, value)
        if self.bias_k is not None and self.bias_v is not None:
            biases = (bias.view(1, self.num_heads, 1, -1) for bias in (self.bias_k, self.bias_v))
            heads[1:] = (
                torch.cat([part, bias.expand(len(part), -1, -1, -1)], 2)
                for part, bias in zip(heads[1:], biases, strict=True)
            )
        if self.add_zero_attn:
            heads[1:] = (F.pad(part, (0, 0, 0, 1)) for part in heads[1:])
        mask = self._mask(attn_mask, key_padding_mask, heads[1].shape[2], query.dtype)
        weights = None
        if need_weights:
            scores = heads[0] @ heads[1].transpose(-2, -1) / math.sqrt(self.head_dim)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, self.dropout, self.training)
            mixed = weights @ heads[2]
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, dropout)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if single:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values of the heads: [b, heads, length, head_dim]."""
        weights: Sequence[Tensor] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases: Sequence[Tensor | None] = (None, None, None)
        if self.in_proj_bias is not None:
            biases = self.in_proj_bias.chunk(3)
        return [
            F.linear(part, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part, weight, bias in zip((query, key, value), weights, biases, strict=True)
        ]

    def _mask(
        self, attention: Tensor | None, padding: Tensor | None, length: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Numbers to add to the scores [b, heads, l, s] of keys of that `length`; None for none."""
        if attention is not None and attention.dim() == 3:
            raise ValueError("a mask for each attention head does not fit a subnet with some of the heads")
        mask = None
        for part in (attention, None if padding is None else padding[:, None, None]):
            if part is None:
                continue
            if part.dtype == torch.bool:
                part = torch.zeros_like(part, dtype=dtype).masked_fill_(part, -math.inf)
            part = F.pad(part, (0, length - part.shape[-1]))
            mask = part if mask is None else mask + part
        return mask
