"""The programs of examples/frameworks beside each other: the table of that page.

    nox -s peers -- peers

Each run has a process of its own, started afresh, so that the threads of one framework
do not disturb another and compiling is measured as a new program meets it. The order
changes from seed to seed. Needs torch and flax; what is not there is left out.
"""

import argparse
import functools
import importlib.util
import io
import multiprocessing
import pathlib
import random
import statistics
import sys
import tokenize

import numpy as np

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "frameworks"
sys.path.insert(0, str(FOLDER))

OURS = "eqx_mlp"
# The name in the table, the program, what it needs.
PROGRAMS = {
    "PyTorch": ("in_pytorch", "torch"),
    "PyTorch, torch.compile": ("in_pytorch", "torch"),
    "Flax linen": ("in_flax_linen", "flax"),
    "Flax NNX": ("in_flax_nnx", "flax"),
    "pure JAX": ("in_pure_jax", "jax"),
    OURS: ("in_eqx_mlp", "jax"),
}
CURVE = 100  # steps whose losses are compared


def trainer(name):
    train = importlib.import_module(PROGRAMS[name][0]).train
    return functools.partial(train, compiled=True) if "compile" in name else train


def trained(name, seed, epochs):
    """Losses of the first steps, the seconds of each epoch, the test accuracy."""
    import problem as shared

    run = trainer(name)(problem := shared.make(seed), epochs)
    return run.losses[:CURVE], run.seconds, shared.accuracy(problem, run)


def curve(name, seed):
    """Losses of the first steps, with weights and steps in float64."""
    import jax
    import problem as shared

    jax.config.update("jax_enable_x64", True)
    return trainer(name)(shared.make(seed, CURVE, np.float64), 1).losses


def afresh(function, *args):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def lines_of_code(name):
    """Lines of the program that hold code: no blanks, comments or docstrings."""
    text = (FOLDER / f"{PROGRAMS[name][0]}.py").read_text(encoding="utf-8")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    aside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE}
    aside |= {tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        alone = before is None or before.type in aside
        docstring = token.type == tokenize.STRING and alone and after.type in aside
        if token.type not in aside and not docstring:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines)


def row(name, runs, ours, exact, our_exact):
    """A row of the table from the runs of all seeds."""
    first = [seconds[0] for _, seconds, _ in runs]
    later = np.array([seconds[1:] for _, seconds, _ in runs])
    once = [f - statistics.median(e) for f, e in zip(first, later, strict=True)]
    right = [100 * accuracy for *_, accuracy in runs]
    apart = max(
        np.abs(own[0] - our[0]).max() for own, our in zip(runs, ours, strict=True)
    )
    cells = [
        name,
        f"{statistics.mean(right):.2f} % ({min(right):.2f} to {max(right):.2f})",
        f"{1e3 * np.median(later):.0f} ms ({1e3 * later.min():.0f} to "
        f"{1e3 * later.max():.0f})",
        f"{round(statistics.median(once), 1) + 0.0} s",
        str(lines_of_code(name)),
        f"{apart:.0e}" if name != OURS else "",
        f"{np.abs(exact - our_exact).max():.0e}" if name != OURS else "",
    ]
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("--epochs must be 2 or more: the first holds compiling")
    names = [
        name
        for name, (_, needs) in PROGRAMS.items()
        if importlib.util.find_spec(needs) and (args.compile or "compile" not in name)
    ]
    runs = {name: [] for name in names}
    for seed in range(args.seeds):
        for name in random.Random(seed).sample(names, len(names)):
            runs[name].append(afresh(trained, name, seed, args.epochs))
    exact = {name: afresh(curve, name, 0) for name in names}
    print(
        f"{args.epochs} epochs, seeds 0 to {args.seeds - 1}: mean accuracy, median "
        f"times, the lowest and highest. The loss's largest distance to {OURS}'s in "
        f"{CURVE} steps.\n\n"
        "| program | test accuracy | an epoch | the first one, more | lines of code | "
        "apart, float32 | apart, float64 |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name in names:
        print(row(name, runs[name], runs[OURS], exact[name], exact[OURS]))


if __name__ == "__main__":
    main()
