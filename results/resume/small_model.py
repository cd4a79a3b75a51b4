"""The model of the peers that use PyTorch: an embedding, a GRU and a decoder, with dropout."""

from typing import Any

import torch
from shared import DROPOUT
from torch import nn
from torch.nn import functional


class SmallModel(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        """Draw its parameters from torch's generator."""
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layer = nn.GRU(32, 32, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.decoder = nn.Linear(32, 64)

    def forward(self, bytes_BT: torch.Tensor) -> torch.Tensor:
        """The loss, for programs that wrap a model."""
        return self.loss(bytes_BT)

    def loss(self, bytes_BT: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the bytes after the first, in nats; int64 [B, T]."""
        x_BTE = self.dropout(self.embedding(bytes_BT[:, :-1]))
        h_BTH, _ = self.layer(x_BTE)
        logits_BTV = self.decoder(self.dropout(h_BTH))
        return functional.cross_entropy(logits_BTV.flatten(0, 1), bytes_BT[:, 1:].flatten())


def parameters_of(model: nn.Module) -> dict[str, Any]:
    """The parameters of a model as arrays."""
    return {name: value.detach().numpy() for name, value in model.named_parameters()}
