"""In which order examples are gone through, batch by batch."""

import abc

import numpy as np
from jaxtyping import Int


class Order(abc.ABC):
    """Which examples each batch of an epoch holds, a function of the epoch's number."""

    # How many rows a batch has, padding included.
    width: int
    # How many examples a batch has, or should have in the mean.
    batch_size: int
    # How many batches an epoch has.
    steps: int

    @abc.abstractmethod
    def order(self, number: int) -> Int[np.ndarray, " padded"]:
        """The examples of an epoch, each batch filled up to its width."""

    @abc.abstractmethod
    def counts(self, number: int) -> Int[np.ndarray, " steps"] | None:
        """How many of each batch's rows count, or None where all of them do."""
