"""The drafter network in the z-lab layout: a few Qwen3-shaped layers whose keys and values also come from the target.

Queries come from the block only. Every layer makes keys and values from the projected hidden states of the target
("context") and from the block, through the same projections. Context does not depend on the block, so its keys and
values are computed once per token: training and decoding call the same two methods.

Legend: B rows, C context tokens, Q block tokens, K taps, H hidden size, N heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from draftsmith.drafter.mask import Mask, attend
from draftsmith.drafter.shape import DrafterShape

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, each [B, kv heads, T, D]."""
Rotary = tuple[torch.Tensor, torch.Tensor]


def rotary(positions_BT: torch.Tensor, head_dim: int, theta: float) -> Rotary:
    """Cosine and sine [B, 1, T, D] in fp32. Computed from constants: a buffer would be rounded by a cast to bf16."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions_BT.device) / head_dim
    angles_BTD = positions_BT[..., None].float() * theta**-exponents
    angles_B1TD = torch.cat([angles_BTD, angles_BTD], dim=-1)[:, None]
    return angles_B1TD.cos(), angles_B1TD.sin()


def rotate(states_BNTD: torch.Tensor, table: Rotary) -> torch.Tensor:
    """Apply rotary positions in the half-rotation layout."""
    cosine, sine = table
    first, second = states_BNTD.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (states_BNTD.float() * cosine + turned * sine).to(states_BNTD.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm in the precision of its input; the weight stays an fp32 master."""

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(states, self.weight.shape, self.weight.to(states.dtype), self.eps)


class Attention(nn.Module):
    """Attention of block queries over context and block."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        hidden, head_dim = shape.hidden_size, shape.head_dim
        self.num_heads, self.num_kv_heads, self.head_dim = (
            shape.num_attention_heads,
            shape.num_key_value_heads,
            head_dim,
        )
        self.q_proj = nn.Linear(hidden, self.num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * head_dim, hidden, bias=False)
        self.q_norm = RMSNorm(head_dim, eps=shape.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, eps=shape.rms_norm_eps)

    def keys_values(self, states_BTH: torch.Tensor, table: Rotary) -> KeysValues:
        keys = self.k_norm(self._heads(self.k_proj(states_BTH), self.num_kv_heads))
        return rotate(keys, table), self._heads(self.v_proj(states_BTH), self.num_kv_heads)

    def forward(self, states_BQH: torch.Tensor, table: Rotary, context: KeysValues, mask: Mask | None) -> torch.Tensor:
        queries = rotate(self.q_norm(self._heads(self.q_proj(states_BQH), self.num_heads)), table)
        keys, values = self.keys_values(states_BQH, table)
        keys = torch.cat([context[0].to(keys.dtype), keys], dim=2)
        values = torch.cat([context[1].to(values.dtype), values], dim=2)
        groups = self.num_heads // self.num_kv_heads
        if groups > 1:
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        mixed = attend(queries.to(values.dtype), keys.to(values.dtype), values, mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, states_BTX: torch.Tensor, num_heads: int) -> torch.Tensor:
        return states_BTX.view(*states_BTX.shape[:-1], num_heads, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One pre-norm layer. The context is already normalised and does not pass through `input_layernorm`."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward_with_context(
        self,
        states_BQH: torch.Tensor,
        table: Rotary,
        context_BCH: torch.Tensor,
        context_table: Rotary,
        mask: Mask | None,
    ) -> torch.Tensor:
        return self.forward(states_BQH, table, self.self_attn.keys_values(context_BCH, context_table), mask)

    def forward(self, states_BQH: torch.Tensor, table: Rotary, context: KeysValues, mask: Mask | None) -> torch.Tensor:
        states_BQH = states_BQH + self.self_attn(self.input_layernorm(states_BQH), table, context, mask)
        return states_BQH + self.mlp(self.post_attention_layernorm(states_BQH))  # type: ignore[no-any-return]


class Drafter(nn.Module):
    """The drafter. It has neither embedding nor head: both are the target's."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.target_layer_ids) * shape.hidden_size, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)

    def context(self, target_hidden_BCX: torch.Tensor, positions_BC: torch.Tensor) -> list[KeysValues]:
        """Keys and values of every layer for the target's hidden states [B, C, K*H] at these positions."""
        states_BCH, table = self._projected(target_hidden_BCX), self._rotary(positions_BC)
        return [layer.self_attn.keys_values(states_BCH, table) for layer in self.typed_layers()]

    def forward(
        self,
        noise_embedding_BQH: torch.Tensor,
        positions_BQ: torch.Tensor,
        context: list[KeysValues],
        mask: Mask | None,
    ) -> torch.Tensor:
        """Final states [B, Q, H], ready for the target's head.

        noise_embedding: the target's embeddings of known token and mask tokens. mask: bool [B, 1, Q, C+Q], true where
        a query may look, or the same as a BlockMask; None lets every query see everything.
        """
        table = self._rotary(positions_BQ)
        states_BQH = noise_embedding_BQH
        for layer, keys_values in zip(self.typed_layers(), context, strict=True):
            states_BQH = layer(states_BQH, table, keys_values, mask)
        return self.norm(states_BQH)  # type: ignore[no-any-return]

    def forward_with_context(
        self,
        target_hidden_BCX: torch.Tensor,
        positions_BC: torch.Tensor,
        noise_embedding_BQH: torch.Tensor,
        positions_BQ: torch.Tensor,
        mask: Mask | None,
    ) -> torch.Tensor:
        """`context` and `forward` in one, so that a pass of training needs each layer's parameters once.

        Shapes, masks and result are theirs.
        """
        context_BCH, context_table = self._projected(target_hidden_BCX), self._rotary(positions_BC)
        table, states_BQH = self._rotary(positions_BQ), noise_embedding_BQH
        for layer in self.typed_layers():
            states_BQH = layer.forward_with_context(states_BQH, table, context_BCH, context_table, mask)
        return self.norm(states_BQH)  # type: ignore[no-any-return]

    def init_weights(self, generator: torch.Generator, *, pass_last_tap: bool = False) -> None:
        """Normal(0, 0.02) matrices and unit norms, drawn from `generator`.

        With `pass_last_tap` the fc starts as the identity on the last tapped layer plus small noise: the context then
        begins as hidden states that the target itself could almost decode.
        """
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02, generator=generator)
            else:
                nn.init.ones_(parameter)
        if pass_last_tap:
            with torch.no_grad():
                hidden = self.shape.hidden_size
                self.fc.weight.mul_(0.05)
                self.fc.weight[:, -hidden:] += torch.eye(hidden, dtype=self.fc.weight.dtype)

    def typed_layers(self) -> list[Layer]:
        """The layers, as what they are."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _projected(self, target_hidden_BCX: torch.Tensor) -> torch.Tensor:
        return self.hidden_norm(self.fc(target_hidden_BCX.to(self.fc.weight.dtype)))  # type: ignore[no-any-return]

    def _rotary(self, positions_BT: torch.Tensor) -> Rotary:
        return rotary(positions_BT, self.shape.head_dim, self.shape.rope_theta)
