"""Kill a run on MNIST at random moments until it has ended, and compare it bit for bit.

    python tests/train/kills.py --kills 50

Each life of the run is killed within half a second after its first checkpoint. With a
checkpoint every few updates, most of these moments are in the middle of a write.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

from eqx_mlp.train import _content, _store

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist.py"


def command(folder, args):
    return [
        *(sys.executable, str(EXAMPLE), "--checkpoint-dir", str(folder)),
        *("--epochs", str(args.epochs), "--checkpoint-every", str(args.every)),
        *("--dropout", "0.1"),
    ]


def latest(folder):
    return max(_store.checkpoints_in(folder), default=0)


def end_of(folder):
    """All that the last checkpoint holds but times, by name, as bytes."""
    checkpoint = _content.Checkpoint(_store.checkpoints_in(folder)[latest(folder)])
    return {
        path: (x.shape, x.dtype, x.tobytes())
        for path, x in checkpoint.arrays().items()
        if "seconds" not in path
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run(
            command(folder / "whole", args), check=True, stdout=subprocess.DEVNULL
        )
        wanted = end_of(folder / "whole")
        kills, writes, runs = 0, 0, 0
        while kills < args.kills:
            run = folder / f"run{runs}"
            before = latest(run)
            process = subprocess.Popen(command(run, args), stdout=subprocess.DEVNULL)
            while latest(run) == before and process.poll() is None:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.5))
            process.kill()
            code = process.wait()
            assert code in (0, -9), f"a restart failed with {code}"
            kills += code == -9
            writes += (run / ".writing").exists()
            print(
                f"kill {kills}: updates {before} to {latest(run)}, in a write: "
                f"{(run / '.writing').exists()}",
                flush=True,
            )
            if code == 0:
                assert end_of(run) == wanted, "another end"
                runs += 1
        subprocess.run(command(run, args), check=True, stdout=subprocess.DEVNULL)
        assert end_of(run) == wanted, "another end"
        accuracy = np.frombuffer(wanted["run['history']['val_accuracy']"][2])[-1]
        print(
            f"{kills} kills, {writes} of them in the middle of a write, {runs + 1} "
            f"run(s): every restart succeeded and each end is bit for bit that of the "
            f"run that was left alone (test accuracy {accuracy:.2%})"
        )


if __name__ == "__main__":
    main()
