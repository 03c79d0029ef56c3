"""Train on MNIST on one device, on several, or in several processes.

python examples/data_parallel.py                  # on the devices that are there
python examples/data_parallel.py --devices 8      # on eight virtual CPU devices
python examples/data_parallel.py --processes 2    # two processes on this machine
srun python examples/data_parallel.py --join      # a SLURM, Open MPI or Kubernetes job

The network that comes out is the same, up to rounding. With --checkpoint-dir a job that
was killed goes on with the same command, in as many processes or in others.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="Train on MNIST on many devices and in many processes.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--devices", type=int, help="virtual CPU devices a process")
    parser.add_argument("--processes", type=int, default=1, help="to start here")
    parser.add_argument(
        "--join", action="store_true", help="join the processes of a cluster's job"
    )
    parser.add_argument(
        "--shard-parameters",
        action="store_true",
        help="each device holds only its part of the network and of Adam's state",
    )
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data")
    parser.add_argument("--batch-size", type=int, default=128, help="of all devices")
    parser.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    parser.add_argument("--checkpoint-dir", metavar="DIR", help="keep the run there")
    parser.add_argument(
        "--memory-map",
        metavar="DIR",
        help="keep the images in files there, of which each process reads its own rows",
    )
    return parser.parse_args(arguments)


def launch(processes):
    """Start this program once for each process, and wait for all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    job = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | {"JOB": f"{address} {processes} {number}"},
        )
        for number in range(processes)
    ]
    # Not 0 if that of any process is not.
    return max(abs(process.wait()) for process in job)


def in_files(folder, arrays):
    """The arrays as memory maps of files, which are written if they are missing."""
    import numpy as np

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    maps = []
    for name, array in zip(("x", "y"), arrays, strict=True):
        path = folder / f"{name}.npy"
        if not path.exists():
            # Several processes may do so at once: each writes beside, and renames.
            beside = folder / f"{name}.{os.getpid()}.npy"
            np.save(beside, array)
            os.replace(beside, path)
        maps.append(np.load(path, mmap_mode="r"))
    return tuple(maps)


def main(arguments=None):
    args = parse(arguments)
    if args.devices:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(args.devices)
    if args.processes > 1 and "JOB" not in os.environ:
        return launch(args.processes)

    import jax
    import optax

    from eqx_mlp import (
        MLP,
        Checkpoints,
        data,
        distributed,
        evaluate,
        fit,
        losses,
        make_mesh,
        metrics,
    )

    if "JOB" in os.environ:
        address, processes, number = os.environ["JOB"].split()
        distributed.initialize(address, int(processes), int(number))
    elif args.join:
        distributed.initialize()

    train, test = data.mnist()
    if args.memory_map:
        train = in_files(args.memory_map, train)
    mesh = make_mesh()
    model_key, fit_key = jax.random.split(jax.random.key(args.seed))
    model = MLP(784, 10, (256, 128), key=model_key)
    state, history = fit(
        model,
        train,
        loss=losses.cross_entropy,
        optimizer=optax.adam(1e-3),
        key=fit_key,
        epochs=args.epochs,
        batch_size=args.batch_size,
        transform=data.image_to_vector,
        checkpoint=args.checkpoint_dir and Checkpoints(args.checkpoint_dir),
        mesh=mesh,
        shard_parameters=args.shard_parameters,
    )
    measured = evaluate(
        state.model,
        test,
        metrics={"accuracy": metrics.accuracy},
        transform=data.image_to_vector,
        mesh=mesh,
    )
    if jax.process_index() == 0:
        print(
            f"{jax.process_count()} process(es), {mesh.size} device(s): loss "
            f"{history['loss'][-1]:.4f}, test accuracy {measured['accuracy']:.2%}, "
            f"{history['seconds'].sum():.1f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
