"""The multilayer perceptron."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checked import checked
from .._display import mimebundle
from .._types import ArrayLike, Key
from ._init import Initializer, he_normal
from ._layer import (
    described,
    dropout_keys,
    linear,
    require_example,
    require_options,
    require_sizes,
)


def _require(
    self: Any, in_size: Any, out_size: Any, hidden_sizes: Any, **options: Any
) -> None:
    require_sizes("MLP", in_size=in_size, out_size=out_size)
    if not isinstance(hidden_sizes, Sequence) or isinstance(hidden_sizes, str):
        raise ValueError(
            "MLP: hidden_sizes is the width of each hidden layer, such as (256, 128), "
            f"got {hidden_sizes!r}"
        )
    for i, size in enumerate(hidden_sizes):
        require_sizes("MLP", **{f"hidden_sizes[{i}]": size})
    require_options("MLP", **options)


class MLP(eqx.Module):
    """A multilayer perceptron of one example: linear layers with an activation between.

    Unlike `eqx.nn.MLP` each hidden layer has a width of its own, weights are drawn by
    He's rule, biases start at zero, and dropout follows each hidden activation.

    >>> import jax, jax.numpy as jnp
    >>> model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    >>> model(jnp.ones(784)).shape
    (10,)
    >>> jax.vmap(model)(jnp.ones((32, 784))).shape
    (32, 10)
    """

    layers: tuple[eqx.nn.Linear, ...]
    dropout: eqx.nn.Dropout
    activation: Callable[[Array], Array]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)

    @checked(_require)
    def __init__(
        self,
        in_size: int,
        out_size: int,
        hidden_sizes: Sequence[int],
        *,
        activation: Callable[[Array], Array] = jax.nn.relu,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        init: Initializer = he_normal,
        dtype: Any = None,
        key: Key,
    ):
        """Draw the weights.

        Args:
            in_size: features of an example.
            out_size: outputs, for example one logit a class.
            hidden_sizes: the width of each hidden layer; `()` is a linear model.
            activation: elementwise, after each hidden layer.
            dropout_rate: probability of dropping a hidden unit in training.
            use_bias: whether layers add a bias.
            init: draws weights, `init(key, (out, in), dtype)`.
            dtype: of the parameters; None is JAX's default float.
            key: split into one key a layer.

        Raises:
            ValueError: a size below 1, a rate outside [0, 1), no key.
        """
        sizes = (in_size, *hidden_sizes, out_size)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(
            linear(m, n, use_bias=use_bias, init=init, dtype=dtype, key=k)
            for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.dropout = eqx.nn.Dropout(dropout_rate)
        self.activation = activation
        self.in_size = int(in_size)
        self.out_size = int(out_size)

    @checked(lambda self, x, **_: require_example("MLP", self.in_size, x))
    def __call__(
        self,
        x: Float[ArrayLike, " {self.in_size}"],
        *,
        key: Key | None = None,
        inference: bool | None = None,
    ) -> Float[Array, " {self.out_size}"]:
        """Outputs of one example.

        Args:
            x: features `[in]`; for a batch use `jax.vmap(model)`.
            key: for dropout's masks; not needed without dropout or in inference.
            inference: True switches dropout off, False on; None leaves it to
                `eqx.nn.inference_mode`.

        Returns:
            `[out]`.

        Raises:
            ValueError: another shape or dtype, or a key missing for dropout.
        """
        *hidden, last = self.layers
        x = jnp.asarray(x)
        keys = dropout_keys("MLP", self.dropout, key, inference, len(hidden))
        for layer, k in zip(hidden, keys, strict=True):
            x = self.activation(layer(x))
            x = self.dropout(x, key=k, inference=inference)
        return last(x)

    def _arguments(self) -> dict[str, Any]:
        *hidden, last = self.layers
        return {
            "in_size": self.in_size,
            "out_size": self.out_size,
            "hidden_sizes": [layer.out_features for layer in hidden],
            "use_bias": last.use_bias,
            "dtype": str(last.weight.dtype),
        }

    __repr__ = described
    _repr_mimebundle_ = mimebundle
