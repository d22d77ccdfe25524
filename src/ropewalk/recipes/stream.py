"""The order in which a run reads its rows: a pure function of the seed and the place."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TrainingStream(Dataset[Any]):
    """Lay the epochs of a run end to end, each a seeded permutation of the same rows.

    To the trainer the whole run is one epoch read in order. Row ``k`` of it depends on nothing
    but the seed and ``k``, so resuming, several processes and workers read what one
    uninterrupted process reads, and a batch may span the border of two epochs.

    Args:
        rows: Map-style rows. With a ``set_epoch`` method they are told the epoch of the row they
            are asked for; the object passed in stays as it is.
        length: Rows that the run reads.
        seed: Seed of the permutations.

    Example:
        >>> stream = TrainingStream("abc", length=6, seed=0)
        >>> sorted(stream[k] for k in range(3)), sorted(stream[k] for k in range(3, 6))
        (['a', 'b', 'c'], ['a', 'b', 'c'])
    """

    def __init__(self, rows: Any, *, length: int, seed: int) -> None:
        self._rows = copy.copy(rows)
        self._length = length
        self._seed = seed
        self._epoch = -1
        self._order: NDArray[np.int64]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> Any:
        """Return a row of the run.

        Args:
            place: Its number, from 0.
        """
        if not 0 <= place < self._length:
            raise IndexError(f"place must be in 0..{self._length - 1}; got {place}")
        epoch, within = divmod(place, len(self._rows))
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = generator.permutation(len(self._rows))
            self._epoch = epoch
            if hasattr(self._rows, "set_epoch"):
                self._rows.set_epoch(epoch)
        return self._rows[int(self._order[within])]
