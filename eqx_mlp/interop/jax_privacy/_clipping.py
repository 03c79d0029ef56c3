"""How far an example's part of a sum is scaled down."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...per_example._chunks import require_chunk_size
from ...per_example._group import require_clipping
from ...per_example._norm import clip_factors


@dataclasses.dataclass(frozen=True)
class Clipping:
    """The options that `clipped_fun` and `clipped_grad` have in common."""

    l2_clip_norm: Any
    rescale_to_unit_norm: bool
    normalize_by: Any
    microbatch_size: int | None
    nan_safe: bool
    dtype: Any

    def __post_init__(self) -> None:
        """Raise a ValueError for what cannot be meant."""
        require_chunk_size(self.microbatch_size, "microbatch_size")
        if not jax.tree_util.all_leaves([self.l2_clip_norm]) or jnp.ndim(
            self.l2_clip_norm
        ):
            raise ValueError(
                f"l2_clip_norm must be one number, got {self.l2_clip_norm!r}: to clip "
                "groups of parameters, use eqx_mlp.clipped_grad"
            )
        require_clipping(self.l2_clip_norm, self.normalize_by)

    @property
    def bound(self) -> Any:
        """The largest norm that an example can add."""
        longest = 1.0 if self.rescale_to_unit_norm else self.l2_clip_norm
        return longest / self.normalize_by

    def factor(
        self, norm: Float[Array, " batch"], group: int = 0
    ) -> Float[Array, " batch"]:
        """min(1, C / norm), and divided by C where rescaled: 1 / max(C, norm).

        So rescaling with C = 0 gives the direction, and with C = inf zero. A norm that
        is only known when the program runs counts as 0 where it is negative or NaN.
        """
        clip = jnp.asarray(self.l2_clip_norm, norm.dtype)
        clip = jnp.where(clip > 0, clip, 0)
        if self.rescale_to_unit_norm:
            longest = jnp.maximum(clip, norm)
            usable = longest >= jnp.finfo(norm.dtype).tiny
            factor = jnp.where(usable, 1 / jnp.where(usable, longest, 1), 0)
        else:
            factor = clip_factors(norm, clip)
        return factor / jnp.asarray(self.normalize_by, norm.dtype)
