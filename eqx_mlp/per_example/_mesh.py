"""A function of a batch, whose rows are spread over the devices of a mesh."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from .._types import Key, Model
from ..data import Batch
from ..distributed._layout import Layout
from ..distributed._mesh import require_mesh
from ._batch import require_batch


def over_mesh(
    f: Callable[..., Any],
    owner: str,
    mesh: Mesh | None,
    cut_rows: Callable[[Callable[[Any], Any], Any], Any],
) -> Callable[..., Any]:
    """`f(model, *batch, key=None, weight=None)` of a batch that it spreads over `mesh`.

    The batch is filled up with rows of weight 0 until every device has as many, and
    `cut_rows(cut, out)` cuts these off from what `f` gives for each row. A model that
    is on the mesh stays as it is; another one is put on every device.
    """
    require_mesh(owner, mesh)
    if mesh is None:
        return f
    layout = Layout(mesh)

    def spread(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> Any:
        require_batch(owner, batch, weight)
        given = Batch(batch, weight)
        ready = layout.batch(given)
        n = given.size
        if layout.is_part(given):
            n *= len(layout.processes)
            if n != ready.size:
                raise ValueError(
                    f"{owner}: each process's part of a batch must divide by the number"
                    f" of its devices, got {given.size} rows"
                )
        model, key = layout.kept((model, key))
        out = f(model, *ready.example, key=key, weight=ready.weight)

        def cut(rows: Any) -> Any:
            return jax.tree.map(lambda x: x[:n], rows)

        return out if n == ready.size else cut_rows(cut, out)

    return spread
