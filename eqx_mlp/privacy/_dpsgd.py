"""DP-SGD: clipping, noise, sampling and accounting in one object."""

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._keys import require_key
from .._types import Key, Loss, Model, Trainable
from ..per_example import ExampleStats
from ..per_example._chunks import require_chunk_size
from ..per_example._clipped import clipped_sums
from ..per_example._method import require_method
from ..train._order import Order
from ..train._private import PrivateGradient
from ..train._shuffle import Shuffle
from ._accounting import epsilon, require_accountant, require_number
from ._poisson import Poisson

SAMPLING = ("poisson", "shuffled")
# No example has this place in a batch, and augmentation has another.
NOISE = 2**32 - 2
# What norms and factors may be off by rounding: gradients are clipped to a bit less
# than the clipping norm, so that none of them is longer.
ROUNDING = 2.0**-14


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGD(PrivateGradient):
    """The gradient of DP-SGD, for `gradient=` of `fit` and of `make_step`.

    grads = (sum_b min(1, C / norm_b) g_b + noise_multiplier * C * z) / B, where B is
    the expected batch size, z standard normal, drawn in float32 or wider, and the sum
    goes over the examples of the batch. Source: Abadi et al. (2016), "Deep learning
    with differential privacy", algorithm 1.

    **The guarantee.** Let D and D' be data sets of which one is the other with one
    example added or removed. With `sampling="poisson"`, each example is in the batch of
    each step with probability q = B / `dataset_size`, independently. Adding or removing
    an example changes the sum of a batch by at most C in the Euclidean norm, its
    sensitivity, and the noise on the sum has standard deviation `noise_multiplier` * C.
    Then for every set S of outcomes, Pr[M(D) in S] <= exp(epsilon) Pr[M(D') in S] +
    delta, where M gives the parameters after each of T steps, and epsilon is
    `epsilon(T)`. q and B are taken as public, so is `dataset_size`. What a user of the
    parameters does with them costs nothing: the optimiser, an average of weights,
    validation on other data.

    With `sampling="shuffled"`, batches are those of ordinary training. Sampling then
    hides nothing: what is counted is one Gaussian mechanism an epoch, begun epochs as
    whole ones, since each example is in one batch of an epoch. Neighbours are data sets
    of which one has, in place of an example, one whose gradient is zero.

    **Not private** are the losses and metrics of the training examples, in the history,
    the logs and the bar; the `TrainState` and checkpoints, which hold the key: whoever
    has it can take the noise away. Publish the model. Make the key from a secret, such
    as `jax.random.key(secrets.randbits(63))`, and give every run its own: two runs with
    one key add the same noise to different gradients. A state is taken to have done all
    its updates with this gradient.

    `fit` draws the batches and writes "epsilon" into the history, the logs and the bar.
    It refuses a stream, data of another size, an ensemble, a checkpoint of a run with
    other settings, and a callback or a checkpoint that chooses by a training loss. The
    optimiser gets no `value=`. A loss that couples examples is refused, batch norm for
    one. `make_step` cannot see how batches came about: draw them with
    `privacy.Poisson`. A weight of an example counts as 1 if it is more. Randomness of
    the loss or of `augment` is allowed, each example's being its own.

    Args:
        l2_clip_norm: C, above 0.
        noise_multiplier: the noise's standard deviation over C, above 0.
        expected_batch_size: B, above 0 and at most `dataset_size`.
        dataset_size: how many examples there are to train on.
        delta: the delta for which epsilon is given, usually below 1 / `dataset_size`.
        sampling: "poisson", or by name "shuffled".
        accountant: "pld" or "rdp", as in `privacy.epsilon`.
        method: as in `clipped_grad`; where "auto" would round a sum to less than
            float32 before the noise, it forms gradients.
        chunk_size: how many examples are worked on at once. None: a few more than the
            expected batch size, so that most draws take one chunk.

    Raises:
        ValueError: an argument out of range.

    >>> import jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import fit
    >>> private = DPSGD(l2_clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=10,
    ...                 dataset_size=100, delta=1e-3, accountant="rdp")
    >>> state, history = fit(
    ...     jnp.array(0.0), (jnp.ones(100),), loss=lambda w, x: 0.5 * (w - x) ** 2,
    ...     optimizer=optax.sgd(0.1), gradient=private, key=jax.random.key(0), epochs=2)
    >>> history["epsilon"].round(2).tolist() == [
    ...     round(private.epsilon(10), 2), round(private.epsilon(20), 2)]
    True
    """

    l2_clip_norm: float | int
    noise_multiplier: float | int
    expected_batch_size: float | int
    dataset_size: int
    delta: float
    sampling: str = "poisson"
    accountant: str = "pld"
    method: str = "auto"
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        for name, high in (
            ("l2_clip_norm", math.inf),
            ("noise_multiplier", math.inf),
            ("dataset_size", math.inf),
            ("delta", 1.0),
        ):
            require_number("DPSGD", name, getattr(self, name), 0, high)
        size = self.dataset_size
        if not isinstance(size, int):
            raise ValueError(f"DPSGD: dataset_size must be an integer, got {size!r}")
        batch = self.expected_batch_size
        if isinstance(batch, bool) or not isinstance(batch, int | float):
            batch = 0
        if not 0 < batch <= size:
            raise ValueError(
                "DPSGD: expected_batch_size must be above 0 and at most dataset_size, "
                f"{size}, got {self.expected_batch_size!r}"
            )
        if self.sampling not in SAMPLING:
            raise ValueError(
                "DPSGD: sampling must be 'poisson', or 'shuffled' where batches are "
                f"not sampled, got {self.sampling!r}"
            )
        if self.sampling == "shuffled" and not isinstance(batch, int):
            raise ValueError(
                "DPSGD: shuffled batches have a size, so expected_batch_size must be "
                f"an integer, got {batch!r}"
            )
        require_accountant("DPSGD", self.accountant)
        require_method(self.method)
        require_chunk_size(self.chunk_size)

    @property
    def sampling_rate(self) -> float:
        """q, the probability of each example to be in a batch."""
        return self.expected_batch_size / self.dataset_size

    @property
    def steps_per_epoch(self) -> int:
        """How many updates `fit` counts as an epoch."""
        return math.ceil(self.dataset_size / self.expected_batch_size)

    def epsilon(self, steps: int) -> float:
        """The epsilon after so many updates, at the object's delta."""
        sampled = self.sampling == "poisson"
        return epsilon(
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            sampling_rate=self.sampling_rate if sampled else 1.0,
            steps=steps if sampled else -(-steps // self.steps_per_epoch),
            accountant=self.accountant,
        )

    def spent(self, steps: int) -> dict[str, float]:
        """The same by name."""
        return {"epsilon": self.epsilon(steps)}

    def order(self, key: Key) -> Order:
        """How a run with this key draws its batches."""
        if self.sampling == "poisson":
            return Poisson(self.dataset_size, self.expected_batch_size, key)
        return Shuffle(self.dataset_size, int(self.expected_batch_size), key)

    @property
    def about(self) -> dict[str, Any]:
        """The settings that a run keeps from its first step to its last."""
        own = dataclasses.asdict(self)
        return {k: v for k, v in own.items() if k not in ("method", "chunk_size")}

    def __call__(
        self, loss: Loss, *, trainable: Trainable = None
    ) -> Callable[..., tuple[PyTree, ExampleStats]]:
        """`f(model, *batch, key, weight=None) -> (grads, ExampleStats)`.

        Each step needs a key of its own. Norms and losses are without noise.
        """
        mean = self.expected_batch_size
        spread = 2 * math.sqrt(mean * max(1 - self.sampling_rate, 0))
        chunk_size = self.chunk_size or 8 * math.ceil((mean + spread) / 8)
        sums_of = clipped_sums(
            loss,
            l2_clip_norm=self.l2_clip_norm * (1 - ROUNDING),
            normalize_by=float(mean),
            method=self.method,
            has_aux=False,
            trainable=trainable,
            chunk_size=chunk_size,
            private=True,
        )
        deviation = self.noise_multiplier * self.l2_clip_norm / mean
        # Other settings never add the same noise to another gradient.
        settings = (self.l2_clip_norm, self.noise_multiplier, mean, self.dataset_size)
        own = zlib.crc32(repr((*settings, self.sampling)).encode())

        def f(
            model: Model, *batch: Any, key: Key | None = None, weight: Any = None
        ) -> tuple[PyTree, ExampleStats]:
            require_key("DPSGD", key)
            if weight is not None:
                weight = jnp.clip(jnp.asarray(weight, jnp.float32), 0, 1)
            sums, params, stats = sums_of(model, *batch, key=key, weight=weight)
            noise_key: Any = key
            for part in (NOISE, own):
                noise_key = jax.random.fold_in(noise_key, part)
            noise = normal(noise_key, sums)
            grads = jax.tree.map(
                lambda s, z, p: (s + deviation * z).astype(p.dtype), sums, noise, params
            )
            return grads, stats

        return f


def normal(key: Any, tree: PyTree) -> PyTree:
    """Standard normal numbers in the shapes and dtypes of `tree`.

    Of a complex number each part is standard normal: norms are over both parts.
    Drawn by JAX: the noise of optax and of jax_privacy is, too, but theirs comes with a
    state that holds a key, where a step of ours is a function of its number.
    """
    leaves, structure = jax.tree.flatten(tree)
    # On a CPU this layout of the same generator takes half the time.
    with jax.threefry_partitionable(False):
        drawn = [
            jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype)
            for i, x in enumerate(leaves)
        ]
    # JAX gives a complex number the variance 1, a half to each part.
    drawn = [z * math.sqrt(2) if jnp.iscomplexobj(z) else z for z in drawn]
    return jax.tree.unflatten(structure, drawn)
