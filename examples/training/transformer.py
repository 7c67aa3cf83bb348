"""A transformer that writes with few tokens, and how it learns from groups of trajectories. It knows no server.

A trajectory is one row of tokens. Each column has a meaning: a word of the question, a token that the policy chooses,
a token that a tool answered. A `Grammar` says which tokens may stand in a column after the token before it; where only
one may, nothing is chosen and nothing is learned.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

CLIP = 0.2
"""How far one update may move the probability of a token, as in PPO."""
ENTROPY = 0.01
"""A small bonus for keeping other tokens possible."""


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int
    rate: float
    """Of learning, for Adam."""
    warm_up: int = 20
    """Updates in which the rate grows to its full height. Large policies that begin faster unlearn to explore."""


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norms = nn.ModuleList([nn.LayerNorm(size.width), nn.LayerNorm(size.width)])
        self.looks = nn.Linear(size.width, 3 * size.width)
        self.joins = nn.Linear(size.width, size.width)
        self.thinks = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        seen = seen + self.attend(self.norms[0](seen))
        return seen + self.thinks(self.norms[1](seen))

    def attend(self, seen: torch.Tensor) -> torch.Tensor:
        rows, columns, width = seen.shape
        split = self.looks(seen).view(rows, columns, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        return self.joins(mixed.transpose(1, 2).reshape(rows, columns, width))


class Transformer(nn.Module):
    """Decoder only, with the same weights for reading and for writing a token, so that copying is easy to learn.

    At first a block adds nothing, so that what the model reads reaches its end, however deep it is.
    """

    def __init__(self, tokens: int, columns: int, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, size.width)
        self.places = nn.Embedding(columns, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.scale = math.sqrt(size.width)
        for weights in self.parameters():
            if weights.dim() > 1:
                nn.init.normal_(weights, std=0.02)
        for block in self.blocks:
            nn.init.zeros_(block.joins.weight)
            nn.init.zeros_(block.thinks[2].weight)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        places = torch.arange(rows.shape[1], device=rows.device)
        seen = self.scale * (self.tokens(rows) + self.places(places))
        logits: torch.Tensor = self.norm(self.blocks(seen)) @ self.tokens.weight.T
        return logits


class Policy:
    """A transformer with its grammar, its dice and its optimizer, on one device."""

    def __init__(self, grammar: torch.Tensor, size: Size, *, seed: int, device: str) -> None:
        """The grammar has True at [column, token before, token] for what may be written."""
        torch.manual_seed(seed)
        self.device = device
        self.grammar = grammar.to(device)
        self.model = Transformer(grammar.shape[2], grammar.shape[0], size).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=size.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )
        self.size = size
        self.updates = 0

    def warm(self, rows: int) -> None:
        """Let the device load what it computes with, before time is measured."""
        blank = torch.zeros(rows, self.grammar.shape[0], dtype=torch.long, device=self.device)
        self.scores(blank).sum().backward()
        self.model.zero_grad(set_to_none=True)

    @property
    def parameters(self) -> int:
        return sum(weights.numel() for weights in self.model.parameters())

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """For each column but the first, the log probability of each token, given what is before it."""
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(rows[:, :-1])
        allowed = self.grammar[torch.arange(1, rows.shape[1], device=self.device), rows[:, :-1]]
        return torch.log_softmax(logits.float().masked_fill(~allowed, -1e9), dim=-1)

    @torch.no_grad()
    def write(self, rows: torch.Tensor, said: torch.Tensor, columns: range) -> None:
        """Fill these columns of the rows, one after the other, and their log probabilities in `said`."""
        for column in columns:
            scores = self.scores(rows[:, : column + 1])[:, -1]
            chosen = torch.multinomial(scores.exp(), 1)
            rows[:, column] = chosen[:, 0]
            said[:, column] = scores.gather(1, chosen)[:, 0]

    def choices(self, rows: torch.Tensor) -> torch.Tensor:
        """Where more than one token was allowed."""
        return self.grammar[torch.arange(1, rows.shape[1], device=self.device), rows[:, :-1]].sum(-1) > 1

    def learn(
        self, rows: torch.Tensor, said: torch.Tensor, advantages: torch.Tensor, *, rounds: int, parts: int
    ) -> None:
        """Look at all rows in some rounds. `said` has the log probabilities from when they were written."""
        for _ in range(rounds):
            for part in torch.randperm(len(rows), device=self.device).chunk(parts):
                self.climb(self.goal(rows[part], said[part], advantages[part, None]))

    def goal(self, rows: torch.Tensor, said: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
        """The clipped policy gradient, over the tokens that were chosen."""
        scores, chosen = self.scores(rows), self.choices(rows)
        ratio = (scores.gather(2, rows[:, 1:, None])[:, :, 0] - said[:, 1:]).exp()
        worth = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        entropy = -(scores.exp() * scores.clamp(min=-50)).sum(-1)
        return ((worth + ENTROPY * entropy) * chosen).sum() / chosen.sum()

    def climb(self, goal: torch.Tensor) -> None:
        self.updates += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.size.rate * min(1.0, self.updates / self.size.warm_up)
        self.optimizer.zero_grad(set_to_none=True)
        (-goal).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def group_relative(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """How much better than its group each trajectory did, in standard deviations of the group.

    A trajectory without a reward (NaN) was lost by no fault of the policy: it counts for nothing.
    """
    grouped = rewards.view(-1, group)
    better = grouped - grouped.nanmean(dim=1, keepdim=True)
    spread = better.square().nanmean(dim=1, keepdim=True).sqrt()
    return (better / (spread + 1e-4)).nan_to_num(0.0).flatten()
