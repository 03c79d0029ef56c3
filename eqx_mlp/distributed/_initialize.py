"""How a process joins the others."""

import inspect
from typing import Any

import jax

from .._checked import checked


def _require(
    coordinator_address: Any = None,
    num_processes: Any = None,
    process_id: Any = None,
    *,
    timeout: Any = 20,
) -> None:
    if not isinstance(timeout, int) or isinstance(timeout, bool) or timeout < 1:
        raise ValueError(
            "distributed.initialize: timeout is in whole seconds, at least 1, got "
            f"{timeout!r}"
        )
    given = (coordinator_address, num_processes, process_id)
    if coordinator_address is not None and None in given:
        raise ValueError(
            "distributed.initialize: with coordinator_address=, such as 'host:1234', "
            "give num_processes= and process_id=, too"
        )
    if None not in (num_processes, process_id) and not 0 <= process_id < num_processes:
        raise ValueError(
            f"distributed.initialize: process_id must be from 0 to {num_processes - 1} "
            f"with num_processes={num_processes}, got {process_id}"
        )


@checked(_require)
def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = 20,
) -> None:
    """Join the other processes of this run; afterwards `jax.devices()` has all devices.

    To be called once in each process, before anything of JAX's is used. Under SLURM,
    Open MPI and Kubernetes the arguments are found out. CPU devices talk to each other
    by Gloo, which comes with JAX.

    If a process dies, the others are ended too, with a message that says so, once it
    has been silent for `timeout` seconds or earlier. Start all of them again:
    with `checkpoint=`, `fit` goes on from the last checkpoint.

    Args:
        coordinator_address: "host:port" of process 0, the same in all processes.
        num_processes: how many there are.
        process_id: the number of this one, from 0.
        timeout: seconds without a sign of life after which a process counts as dead.

    Raises:
        ValueError: some arguments are missing, and cannot be found out.
        RuntimeError: JAX has been used already, or this process has joined already.

    >>> from eqx_mlp import distributed
    >>> distributed.initialize("localhost:1234", num_processes=2)
    Traceback (most recent call last):
    ValueError: ...with coordinator_address=, such as 'host:1234', give...
    """
    options: dict[str, Any] = {"heartbeat_timeout_seconds": timeout}
    if (
        "shutdown_timeout_seconds"
        in inspect.signature(jax.distributed.initialize).parameters
    ):
        options["shutdown_timeout_seconds"] = timeout
    try:
        jax.distributed.initialize(
            coordinator_address, num_processes, process_id, **options
        )
    except ValueError as error:
        raise ValueError(
            "distributed.initialize: found no SLURM, Open MPI or Kubernetes job to "
            "join: give coordinator_address='host:port', num_processes= and "
            f"process_id=. JAX said: {error}"
        ) from error
