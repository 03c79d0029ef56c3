"""What XLA says that clipped sums take, where rows or the batch are many.

    python tests/benchmarks/clipped_limits.py

First a layer applied to 64 and to 256 rows an example: FLOPs of the whole against the
least there can be. That is a plain gradient without its product of rows and cotangents,
and then, for each example, the cheaper way to its norm and its part of the sum: Gram
(T^2 (in + out) multiplications, the product afterwards) or formed (the product, then a
pass over what was formed). Then the memory of a large batch in chunks. Nothing is run.
"""

import jax
import jax.numpy as jnp
from clipped import compiled, net

from eqx_mlp import clipped_grad
from eqx_mlp.losses import cross_entropy

BATCH = 16


def rows(t, width):
    """FLOPs over the least, for T rows through a layer of `width` to `width`."""
    w = jax.random.normal(jax.random.key(0), (width, width))
    x = jax.random.normal(jax.random.key(1), (BATCH, t, width))
    # Two layers, so that a cotangent has to go back through one.
    loss = lambda ws, x: jnp.sum(jnp.square(jnp.tanh(x @ ws[0]) @ ws[1]))
    plain = jax.grad(lambda ws, x: jnp.mean(jax.vmap(loss, in_axes=(None, 0))(ws, x)))
    taken = compiled(clipped_grad(loss, l2_clip_norm=1.0), [w, w], x)[1]["flops"]
    base = compiled(plain, [w, w], x)[1]["flops"]
    product = 2 * t * width * width
    gram = 2 * t * t * 2 * width + product
    formed = product + 2 * 2 * width * width
    least = base + 2 * BATCH * (min(gram, formed) - product)
    chosen = "Gram" if gram < formed else "formed"
    print(f"{t:4} rows, {width} wide: {taken / least:.3f} ({chosen})")


def chunked(batch, chunk):
    """The memory of a batch of 784-2048-2048-10, `chunk` examples at once."""
    model = net((784, 2048, 2048, 10), jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, 784), jnp.float32)
    y = jax.ShapeDtypeStruct((batch,), jnp.int32)
    f = clipped_grad(cross_entropy, l2_clip_norm=1.0, chunk_size=chunk)
    params, rest = jax.tree.flatten(model)
    arrays = [p for p in params if hasattr(p, "dtype")]

    def of_arrays(arrays, x, y):
        given = iter(arrays)
        leaves = [next(given) if hasattr(p, "dtype") else p for p in params]
        return f(jax.tree.unflatten(rest, leaves), x, y)

    peak = compiled(of_arrays, arrays, x, y)[1]["bytes"]
    print(f"batch {batch}, chunks of {chunk}: {peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    print("FLOPs over the least there can be")
    for width in (256, 1024):
        for t in (64, 256):
            rows(t, width)
    print("\nPeak memory of clipped_grad, 784-2048-2048-10")
    for chunk in (256, 1024, None):
        chunked(8192, chunk)
