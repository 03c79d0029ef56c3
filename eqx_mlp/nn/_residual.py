"""A deep perceptron that trains at depth: pre-norm residual blocks."""

import functools
from collections.abc import Callable
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


class ResidualBlock(eqx.Module):
    """`x + down(dropout(activation(up(norm(x)))))`, for one example."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __call__(
        self, x: Float[Array, " width"], activation: Callable, dropout: Callable
    ) -> Float[Array, " width"]:
        """The block's output; `activation` and `dropout` are the model's."""
        return x + self.down(dropout(activation(self.up(self.norm(x)))))


def _require(
    self: Any, in_size: Any, out_size: Any, width: Any, depth: Any, **options: Any
) -> None:
    require_sizes("ResidualMLP", in_size=in_size, out_size=out_size, width=width)
    hidden_size = options.pop("hidden_size", None)
    require_sizes("ResidualMLP", depth=depth, hidden_size=hidden_size or width)
    require_options("ResidualMLP", **options)


class ResidualMLP(eqx.Module):
    """A perceptron of pre-norm residual blocks, for one example.

    An embedding to `width`, `depth` blocks, a last layer norm and a linear head. The
    norm before a block keeps the path from input to output an identity. Source: He et
    al. (2016), "Identity mappings in deep residual networks"; Xiong et al. (2020), "On
    layer normalization in the transformer architecture".

    >>> import jax, jax.numpy as jnp
    >>> model = ResidualMLP(784, 10, width=64, depth=3, key=jax.random.key(0))
    >>> model(jnp.ones(784)).shape
    (10,)
    """

    embed: eqx.nn.Linear
    blocks: tuple[ResidualBlock, ...]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    activation: Callable[[Array], Array]
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    remat: bool = eqx.field(static=True)

    @checked(_require)
    def __init__(
        self,
        in_size: int,
        out_size: int,
        width: int,
        depth: int,
        *,
        hidden_size: int | None = None,
        activation: Callable[[Array], Array] = jax.nn.relu,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        init: Initializer = he_normal,
        dtype: Any = None,
        remat: bool = False,
        key: Key,
    ):
        """Draw the weights.

        Args:
            in_size: features of an example.
            out_size: outputs, for example one logit a class.
            width: features between blocks.
            depth: number of blocks.
            hidden_size: features inside a block; None is `width`.
            activation: elementwise, inside each block.
            dropout_rate: probability of dropping a unit inside a block in training.
            use_bias: whether linear layers add a bias.
            init: draws weights, `init(key, (out, in), dtype)`.
            dtype: of the parameters; None is JAX's default float.
            remat: whether the backward pass computes what is inside a block again
                instead of keeping it: less memory for more time. Source: Chen et al.
                (2016), "Training deep nets with sublinear memory cost".
            key: split into one key a layer.

        Raises:
            ValueError: a size below 1, a rate outside [0, 1), no key.
        """
        hidden = width if hidden_size is None else hidden_size
        keys = iter(jax.random.split(key, 2 * depth + 2))

        def draw(m: int, n: int) -> eqx.nn.Linear:
            return linear(
                m, n, use_bias=use_bias, init=init, dtype=dtype, key=next(keys)
            )

        self.embed = draw(in_size, width)
        self.blocks = tuple(
            ResidualBlock(
                eqx.nn.LayerNorm(width, dtype=dtype),
                draw(width, hidden),
                draw(hidden, width),
            )
            for _ in range(depth)
        )
        self.norm = eqx.nn.LayerNorm(width, dtype=dtype)
        self.head = draw(width, out_size)
        self.dropout = eqx.nn.Dropout(dropout_rate)
        self.activation = activation
        self.in_size = int(in_size)
        self.out_size = int(out_size)
        self.remat = remat

    @checked(lambda self, x, **_: require_example("ResidualMLP", self.in_size, x))
    def __call__(
        self,
        x: Float[ArrayLike, " {self.in_size}"],
        *,
        key: Key | None = None,
        inference: bool | None = None,
    ) -> Float[Array, " {self.out_size}"]:
        """Outputs of one example; arguments and errors are those of `MLP`."""
        n = len(self.blocks)
        keys = dropout_keys("ResidualMLP", self.dropout, key, inference, n)
        x = self.embed(jnp.asarray(x))

        def apply(block: ResidualBlock, x: Array, key: Key | None) -> Array:
            dropout = functools.partial(self.dropout, key=key, inference=inference)
            return block(x, self.activation, dropout)

        off = self.dropout.inference if inference is None else inference
        if self.remat and not off:  # in inference there is no backward pass
            x = _rematerialised(apply, self.blocks, x, keys)
        else:
            for block, k in zip(self.blocks, keys, strict=True):
                x = apply(block, x, k)
        return self.head(self.norm(x))

    def _arguments(self) -> dict[str, Any]:
        return {
            "in_size": self.in_size,
            "out_size": self.out_size,
            "width": self.head.in_features,
            "depth": len(self.blocks),
            "hidden_size": self.blocks[0].up.out_features,
            "use_bias": self.head.use_bias,
            "dtype": str(self.head.weight.dtype),
        }

    __repr__ = described
    _repr_mimebundle_ = mimebundle


def _rematerialised(
    apply: Callable[..., Array], blocks: tuple, x: Array, keys: list[Any]
) -> Array:
    # A loop: unrolled, XLA may compute all of it again at once, and save no memory.
    if len({_form(block) for block in blocks}) > 1:
        raise ValueError(
            "ResidualMLP: remat=True runs the blocks in one loop, so all must have "
            "leaves of the same shapes and dtypes: build the model with remat=False"
        )
    arrays, static = zip(*(eqx.partition(b, eqx.is_array) for b in blocks), strict=True)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
    own_keys = None if keys[0] is None else jnp.stack(keys)

    @eqx.filter_checkpoint
    def body(x: Array, own: tuple) -> tuple[Array, None]:
        block, key = own
        return apply(eqx.combine(block, static[0]), x, key), None

    return jax.lax.scan(body, x, (stacked, own_keys))[0]


def _form(block: ResidualBlock) -> tuple:
    arrays = [x for x in jax.tree.leaves(block) if eqx.is_array(x)]
    return jax.tree.structure(block), tuple((x.shape, x.dtype) for x in arrays)
