"""Shape names used everywhere, each explained once.

`batch` is the leading axis of everything that holds several examples; `in` and `out`
are a model's features; `...` is whatever an example of the user's has.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import optax
from jaxtyping import Array, Float, Int, Integer, PRNGKeyArray, PyTree

# What a caller may hand over where an array is read.
ArrayLike: TypeAlias = Array | np.ndarray
# One number, as a loss returns it.
Scalar: TypeAlias = Float[Array, ""]
# The number of a class, from 0.
Label: TypeAlias = Integer[ArrayLike, ""] | int | np.integer
# How many optimiser updates a state has seen.
Step: TypeAlias = Int[Array, ""]
# One number an example: losses, gradient norms.
PerExample: TypeAlias = Float[Array, " batch"]
# How much each example counts; 0 is padding and contributes exactly nothing.
Weight: TypeAlias = Float[ArrayLike, " batch"]
# A typed key (`jax.random.key`) or a legacy one (`jax.random.PRNGKey`).
Key: TypeAlias = PRNGKeyArray
# An Equinox model, a dictionary of arrays, any pytree of parameters.
Model: TypeAlias = PyTree
# `loss(model, *example, key=None)` of one example, without a batch axis.
Loss: TypeAlias = Callable[..., Any]
# Anything of Optax's with `init` and `update`.
Optimizer: TypeAlias = optax.GradientTransformation | optax.MultiSteps
# A path, a type, a `Selection`; or a bool, a predicate of leaves, or a prefix pytree of
# them; None: inexact arrays.
Trainable: TypeAlias = Any
