"""Mirror symmetry: a body in a wind from the right is replaced by its image in a wind from the left, y -> -y.

The solution is mirrored too, so that a network that sees only one side has half as much to learn. The sign is
determined on the device, without synchronisation. Edges are unchanged; tokens are exchanged for the
transformer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import COLUMNS


class Mirror:
    """The reflection of one body; the identity without `config.mirror`, or if the wind is already from the
    left.
    """

    def __init__(self, config: OperatorConfig, features: Tensor) -> None:
        """features: (P, K); a body is mirrored if the mean of column `config.mirror` is negative."""
        self.config = config
        # Zero is not mirrored: with a wind from ahead, a body is its own image.
        self.flip = None if config.mirror is None else features[:, config.mirror].mean() < 0

    def places(self, places: Tensor) -> Tensor:
        """(N, 3) to (N, 3)."""
        return places if self.flip is None else self._flip_sign(places, [1])

    def features(self, features: Tensor) -> Tensor:
        """(P, K) to (P, K): reflects the y component of every vector."""
        return (
            features
            if self.flip is None
            else self._flip_sign(features, [column + 1 for column in self.config.vectors])
        )

    def surroundings(self, statistics: Tensor) -> Tensor:
        """(..., 9) to (..., 9): reflects the centroids of statistics.

        Also (..., 21), with sums of normals.
        """
        if self.flip is None:
            return statistics
        # The y component of the normals, and the products of offset and normal with exactly one y.
        columns = [4] if statistics.shape[-1] == COLUMNS else [4, 10, 13, 15, 17, 19]
        return self._flip_sign(statistics, columns)

    def tokens(self, tokens: Tensor) -> Tensor:
        """(L, C) to (L, C): each token moves to the place of its image, where the transformer expects it."""
        if self.flip is None:
            return tokens
        return torch.where(
            self.flip, tokens.reshape(*self.config.lattice, -1).flip(1).reshape(tokens.shape), tokens
        )

    def _flip_sign(self, values: Tensor, columns: list[int]) -> Tensor:
        assert self.flip is not None
        parts = list(values.unbind(-1))
        for column in columns:
            parts[column] = torch.where(self.flip, -parts[column], parts[column])
        return torch.stack(parts, dim=-1)
