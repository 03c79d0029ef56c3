"""Which device holds what: the one place where arrays meet a mesh."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from ..data import Batch

# What runtimes say where a collective has lost a process.
_LOST = re.compile("gloo|nccl|connection|socket|unavailable|aborted|timed? ?out", re.I)


class Layout(NamedTuple):
    """Where the arrays of a computation are: on the devices of a mesh, if there is one.

    The rows of a batch are spread over all axes of the mesh. Parameters are on every
    device, or cut over the last axis. Each method places arrays, or, of tracers, says
    to the compiler where they are. Without a mesh they stay where they are.
    """

    mesh: Mesh | None = None
    shard_parameters: bool = False

    @property
    def devices(self) -> int:
        """How many devices share a batch."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def processes(self) -> list[int]:
        """The numbers of the processes that run this together."""
        if self.mesh is None:
            return [jax.process_index()]
        return sorted({device.process_index for device in self.mesh.devices.flat})

    @property
    def shared(self) -> bool:
        """Whether there are several."""
        return self.mesh is not None and len(self.processes) > 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return not self.shared or self.processes[0] == jax.process_index()

    def whole(self, rows: int) -> int:
        """The next number of rows that all devices can have equally many of."""
        return -(-rows // self.devices) * self.devices

    def own_rows(self, rows: int) -> slice:
        """Those rows of a batch that are on this process's devices."""
        if not self.shared:
            return slice(0, rows)
        places = self._rows.addressable_devices_indices_map((rows,)).values()
        spans = {place[0].indices(rows)[:2] for place in places if place is not None}
        start, stop = min(s[0] for s in spans), max(s[1] for s in spans)
        if sum(b - a for a, b in spans) != stop - start:
            raise ValueError(
                "mesh: the devices of a process must be side by side in the mesh, in "
                "the order of jax.devices(), as in make_mesh()"
            )
        return slice(start, stop)

    def replicated(self, tree: PyTree) -> PyTree:
        """Everything on every device; all processes have the same arrays."""
        return self._put(tree, lambda x: PartitionSpec())

    def parameters(self, tree: PyTree) -> PyTree:
        """A model or a state as it lies between steps."""
        return self._put(tree, self._cut)

    def gathered(self, tree: PyTree) -> PyTree:
        """Inside a step: as `replicated`; as it is without a mesh."""
        return tree if self.mesh is None else self.replicated(tree)

    def cut(self, tree: PyTree) -> PyTree:
        """Inside a step: as `parameters`; as it is without a mesh."""
        return tree if self.mesh is None else self.parameters(tree)

    def kept(self, tree: PyTree) -> PyTree:
        """A model that is on the mesh already as it is there, or on every device."""

        def keep(x: Any) -> Any:
            if isinstance(x, Tracer):
                return x
            devices = {*x.devices()} if isinstance(x, jax.Array) else ()
            return x if devices == self._replicated.device_set else self.replicated(x)

        return tree if self.mesh is None else jax.tree.map(keep, tree)

    def rows(self, tree: PyTree) -> PyTree:
        """Arrays with rows in front, spread over the devices.

        Each process has its own rows, `own_rows` of them.
        """
        return self._put(tree, lambda x: self._rows.spec, own=True)

    def batch(self, batch: Batch) -> Batch:
        """A batch spread over the devices, filled up with rows of weight 0."""
        if self.mesh is None:
            return jax.device_put(batch)
        shares = self.devices // (len(self.processes) if self.is_part(batch) else 1)
        return self.rows(filled(batch, -(-batch.size // shares) * shares))

    def is_part(self, batch: Batch) -> bool:
        """Whether it is this process's part of a batch, and not the whole."""
        return self.shared and any(_is_local(x) for x in jax.tree.leaves(batch.example))

    def everyones(self, numbers: Any) -> np.ndarray:
        """What each process has, along a first axis in the order of their numbers."""
        numbers = np.asarray(numbers)
        if not self.shared:
            return numbers[None]
        shape = (self.devices, *numbers.shape)
        spread = jax.make_array_from_callback(
            shape, self._rows, lambda index: numbers[None]
        )
        owner = [device.process_index for device in self.mesh.devices.flat]  # type: ignore[union-attr]
        return fetched(spread)[[owner.index(i) for i in self.processes]]

    def leaders(self, number: int) -> int:
        """What the leading process has."""
        return int(self.everyones(number)[0])

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Say what it most likely means where processes cannot reach each other.

        Raises:
            RuntimeError: in place of what the runtime raised.
        """
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if not self.shared or not _LOST.search(str(error)):
                raise
            raise RuntimeError(
                f"process {jax.process_index()} can no longer reach the other ones of "
                f"{len(self.processes)}: most likely another process has died; see "
                "what it said. Start all of them again; with checkpoint=, fit goes on "
                "from the last checkpoint"
            ) from error

    def by_leader(self, work: Callable[[], None]) -> None:
        """Have the leading process do it, and all wait until it is done.

        Raises:
            RuntimeError: it could not, and this is another process.
        """
        error: Exception | None = None
        if self.leads:
            try:
                work()
            except Exception as raised:
                error = raised
        failed = self.leaders(int(error is not None))
        if error is not None:
            raise error
        if failed:
            raise RuntimeError(
                f"process {self.processes[0]} raised an error; see what it says"
            )

    def local(self, tree: PyTree) -> PyTree:
        """Arrays that this process can look into on its own."""

        def look(x: Any) -> Any:
            if _is_local(x):
                return x
            if _is_key(x):
                data = look(jax.random.key_data(x))
                return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
            return jnp.asarray(fetched(x))

        return jax.tree.map(look, tree)

    @property
    def _replicated(self) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(_automatic(self.mesh), PartitionSpec())

    @property
    def _rows(self) -> NamedSharding:
        assert self.mesh is not None
        mesh = _automatic(self.mesh)
        return NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def _cut(self, x: Any) -> PartitionSpec:
        assert self.mesh is not None
        if not self.shard_parameters or _is_key(x):
            return PartitionSpec()
        axis = self.mesh.axis_names[-1]
        parts = self.mesh.shape[axis]
        fits = [i for i, length in enumerate(x.shape) if length and length % parts == 0]
        if not fits:
            return PartitionSpec()
        longest = max(fits, key=lambda i: x.shape[i])
        return PartitionSpec(*[None] * longest, axis)

    def _put(self, tree: PyTree, spec_of: Any, own: bool = False) -> PyTree:
        def put(x: Any) -> Any:
            if not hasattr(x, "__array__") or isinstance(x, np.generic):
                return x
            if self.mesh is None:
                return x if isinstance(x, jax.Array) else jnp.asarray(x)
            x = x if isinstance(x, jax.Array) else np.asarray(x)
            sharding = NamedSharding(_automatic(self.mesh), spec_of(x))
            if isinstance(x, Tracer):
                return jax.lax.with_sharding_constraint(x, sharding)
            if own and self.shared and _is_local(x):
                return jax.make_array_from_process_local_data(sharding, np.asarray(x))
            return put_on(x, sharding)

        return jax.tree.map(put, tree)


def layout_of(tree: PyTree) -> Layout:
    """The mesh of several processes that some array is on, or none."""
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding):
            mesh = x.sharding.mesh
            if isinstance(mesh, Mesh) and not x.is_fully_addressable:
                return Layout(mesh)
    return Layout()


def put_on(x: Any, sharding: Sharding) -> jax.Array:
    """`x`, which all processes have, where `sharding` says."""
    if _is_key(x):
        data = put_on(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    if sharding.is_fully_addressable or not _is_local(x):
        return jax.device_put(x, sharding)
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def fetched(x: jax.Array) -> np.ndarray:
    """The whole of an array in this process; all of its processes have to ask."""
    if not x.is_fully_addressable and not x.is_fully_replicated:
        assert isinstance(x.sharding, NamedSharding)
        x = _replicate(NamedSharding(x.sharding.mesh, PartitionSpec()))(x)
    return np.asarray(x)


def filled(batch: Batch, rows: int) -> Batch:
    """A batch with rows of weight 0 added until it has `rows`."""
    missing = rows - batch.size
    if missing == 0:
        return batch
    weight = np.ones(batch.size, np.float32) if batch.weight is None else batch.weight

    def with_zeros(x: Any) -> Any:
        module = jnp if isinstance(x, Tracer) else np
        x = module.asarray(x)
        return module.concatenate([x, module.zeros((missing, *x.shape[1:]), x.dtype)])

    return jax.tree.map(with_zeros, Batch(batch.example, weight))


@functools.cache
def _replicate(sharding: NamedSharding) -> Any:
    return jax.jit(lambda x: x, out_shardings=sharding)


@functools.cache
def _automatic(mesh: Mesh) -> Mesh:
    # A mesh may have axes that put a sharding into each array's type. Here the compiler
    # carries them on.
    return Mesh(mesh.devices, mesh.axis_names)


def _is_local(x: Any) -> bool:
    if isinstance(x, Tracer):
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
