"""Mirror: a body under a wind from the right is read as its image under one from the left, y -> -y.

What holds for the one holds for the other, so that a network which sees one side alone needs to learn half as much.
The sign is decided on the device: no step waits for it. Edges stay as they are; tokens change places for the transformer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import COLUMNS


class Mirror:
    """The reflection one body needs: none where the configuration asks for none, or where its sign is right already."""

    def __init__(self, config: OperatorConfig, features: Tensor) -> None:
        """features: (P, K), of which column `config.mirror` decides by its mean."""
        self.config = config
        # Zero counts as right: a body in a wind from ahead is its own image.
        self.turned = None if config.mirror is None else features[:, config.mirror].mean() < 0

    def places(self, places: Tensor) -> Tensor:
        """(N, 3) to (N, 3)."""
        return places if self.turned is None else self._signed(places, [1])

    def features(self, features: Tensor) -> Tensor:
        """(P, K) to (P, K): the y part of every vector."""
        return (
            features
            if self.turned is None
            else self._signed(features, [column + 1 for column in self.config.vectors])
        )

    def surroundings(self, found: Tensor) -> Tensor:
        """(..., 9) to (..., 9): statistics with their centroids reflected. Also (..., 21), with sums of normals."""
        if self.turned is None:
            return found
        # Of the normals y; of offset times normal what has one y.
        return self._signed(found, [4] if found.shape[-1] == COLUMNS else [4, 10, 13, 15, 17, 19])

    def tokens(self, tokens: Tensor) -> Tensor:
        """(L, C) to (L, C): each to the place of its image, so that the transformer finds them where they seem to lie."""
        if self.turned is None:
            return tokens
        return torch.where(
            self.turned, tokens.reshape(*self.config.lattice, -1).flip(1).reshape(tokens.shape), tokens
        )

    def _signed(self, values: Tensor, columns: list[int]) -> Tensor:
        assert self.turned is not None
        parts = list(values.unbind(-1))
        for column in columns:
            parts[column] = torch.where(self.turned, -parts[column], parts[column])
        return torch.stack(parts, dim=-1)
