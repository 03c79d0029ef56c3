"""Streams of several processes, gone through side by side."""

import zlib
from collections.abc import Iterator

import jax
import numpy as np

from ..data import Batch
from ._layout import Layout, filled


def together(own: Iterator[Batch], layout: Layout) -> Iterator[Batch]:
    """`own`, with as many batches and as many rows in them as the others have.

    All processes must come for a batch at the same time. One whose own batches have
    ended goes on with rows of weight 0 until the others' have.

    Raises:
        ValueError: the batches of the processes are not alike.
        RuntimeError: another process's stream raised.
    """
    if not layout.shared:
        yield from own
        return
    last: Batch | None = None
    while True:
        batch, error = None, None
        try:
            batch = next(own, None)
        except Exception as raised:
            error = raised
        last = last if batch is None else batch
        form = zlib.crc32(str(_form(last)).encode())
        told = [error is not None, batch is not None, last.size if last else 0, form]
        failed, there, rows, forms = layout.everyones(np.asarray(told, np.uint32)).T
        if error is not None:
            raise error
        if failed.any():
            first = layout.processes[int(failed.argmax())]
            raise RuntimeError(f"the stream of process {first} raised an error")
        if not there.any():
            return
        if last is None or len({*forms}) > 1:
            raise ValueError(
                "the processes' batches must hold arrays of the same shapes and "
                f"dtypes, apart from their number of rows; here process "
                f"{jax.process_index()} has {_form(last) or 'no batch at all'}"
            )
        if batch is None:
            batch = Batch(last.example, np.zeros(last.size, np.float32))
        yield filled(batch, int(rows.max()))


def _form(batch: Batch | None) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return {jax.tree_util.keystr(k): f"{x.dtype}{x.shape[1:]}" for k, x in leaves}
