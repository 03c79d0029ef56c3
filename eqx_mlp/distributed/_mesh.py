"""The mesh of devices that a run is spread over."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from .._checked import checked


def _require(devices: Any = None, *, fsdp: Any = None) -> None:
    count = len(jax.devices() if devices is None else devices)
    if count == 0:
        raise ValueError("make_mesh: devices must hold at least one device, got none")
    if fsdp is None:
        return
    if isinstance(fsdp, bool) or not isinstance(fsdp, int) or fsdp < 1 or count % fsdp:
        raise ValueError(
            "make_mesh: fsdp is over how many devices each parameter is cut, a divisor "
            f"of the number of devices, {count}, got {fsdp!r}"
        )


@checked(_require)
def make_mesh(devices: Sequence[Any] | None = None, *, fsdp: int | None = None) -> Mesh:
    """A mesh of all devices, for `mesh=` of `fit` and others.

    Args:
        devices: those to use; None is all, of all processes.
        fsdp: over how many devices `shard_parameters=True` cuts each parameter, a
            divisor of their number. The mesh then has the axes ("data", "fsdp"), and a
            group of neighbours along "fsdp" holds one copy of the parameters. None is
            one axis, ("data",), and a parameter is cut over all devices.

    Returns:
        `jax.sharding.Mesh`, in the order of `jax.devices()`, which has the devices of a
        process side by side.

    Raises:
        ValueError: no device, or `fsdp` does not divide their number.

    >>> from eqx_mlp import make_mesh
    >>> make_mesh().axis_names
    ('data',)
    """
    chosen = np.array(jax.devices() if devices is None else list(devices))
    if fsdp is None:
        return Mesh(chosen, ("data",))
    return Mesh(chosen.reshape(-1, fsdp), ("data", "fsdp"))


def require_mesh(owner: str, mesh: Any, shard_parameters: Any = False) -> None:
    """Raise a ValueError unless a run can be spread as it is asked to."""
    if mesh is None:
        if shard_parameters:
            raise ValueError(
                f"{owner}: shard_parameters=True cuts parameters over the devices of a "
                "mesh: give mesh=make_mesh(), too"
            )
    elif not isinstance(mesh, Mesh):
        raise ValueError(
            f"{owner}: mesh must be a jax.sharding.Mesh, such as make_mesh() gives, "
            f"got {mesh!r}"
        )
    elif jax.process_index() not in {d.process_index for d in mesh.devices.flat}:
        raise ValueError(
            f"{owner}: the mesh has no device of this process, number "
            f"{jax.process_index()}: make it of all processes' devices, as make_mesh() "
            "does, or call this only in those that are in it"
        )
