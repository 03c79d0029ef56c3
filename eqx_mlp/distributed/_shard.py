"""One helper that places a model, a state or a batch on a mesh."""

from typing import Any

from jax.sharding import Mesh
from jaxtyping import PyTree

from .._checked import checked
from ..data import Batch
from ._layout import Layout
from ._mesh import require_mesh


def _require(tree: Any, mesh: Any, *, shard_parameters: Any = False) -> None:
    if mesh is None:
        raise ValueError("shard: mesh must be a jax.sharding.Mesh: give make_mesh()")
    require_mesh("shard", mesh, shard_parameters)


@checked(_require)
def shard(tree: PyTree, mesh: Mesh, *, shard_parameters: bool = False) -> PyTree:
    """A model, a state or a batch on the devices of a mesh.

    Args:
        tree: a batch, which is a tuple of arrays with one leading axis or a
            `data.Batch`; or anything else, such as a model or a `TrainState`. With
            several processes each gives its own rows of a batch, all equally many, and
            the same model.
        mesh: `make_mesh()`, or one with axes of other names.
        shard_parameters: whether each device holds only its part of a model or state.
            An array is cut along its longest axis that divides by the last axis of the
            mesh; one without such an axis is on every device.

    Returns:
        of a batch a `data.Batch` whose rows are spread over the devices, filled up with
        rows of weight 0 to a multiple of them; otherwise `tree` with its arrays placed.

    Raises:
        ValueError: no mesh.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import make_mesh, shard
    >>> batch = shard((jnp.ones((3, 2)),), make_mesh())  # of two devices
    >>> batch.weight.tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    layout = Layout(mesh, shard_parameters)
    if isinstance(tree, Batch):
        return layout.batch(tree)
    if type(tree) is tuple:
        return layout.batch(Batch(tree))
    return layout.parameters(tree)
