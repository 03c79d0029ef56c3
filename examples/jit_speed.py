"""What `jit`, `vmap` and `scan` save, and after how many steps compiling has paid.

    python examples/jit_speed.py
    python examples/jit_speed.py --rounds 9 --plot jit_speed.png

The network and its training step are those of pure_jax.py. JAX hands work over and
returns at once, so every time is taken until the result is there. Before what is to be
compiled from nothing, JAX's caches are cleared; what is not is called once before. What
is compared runs in turn, in another order each round. Printed are the median over the
rounds and, in brackets, the lowest and the highest. Where those of two rows overlap,
this machine cannot tell them apart.
"""

import argparse
import inspect
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pure_jax

from eqx_mlp import data

WITHOUT, WITH = "without jit", "with jit"
CALLS = 1000
SMALL = (784, 16, 10), 8  # a network and a batch that are next to no work


class Setting(NamedTuple):
    """Where training starts, and the batches of its steps, all on the device."""

    params: dict
    opt_state: Any
    x: jax.Array  # [steps, batch, 784]
    y: jax.Array  # [steps, batch]


def make_setting(steps, sizes=pure_jax.SIZES, batch=pure_jax.BATCH):
    images, labels = (array[: steps * batch] for array in data.mnist().train)
    params = pure_jax.init(jax.random.key(0), sizes)
    return Setting(
        params,
        pure_jax.make_optimizer(steps).init(params),
        jnp.asarray(pure_jax.as_input(images)).reshape(steps, batch, -1),
        jnp.asarray(labels).reshape(steps, batch),
    )


def timed(function, *args):
    """The seconds until the result is there, and not only on its way; the result."""
    started = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - started, result


def in_turn(rounds, measures):
    """What each measure gives, round by round: seconds [rounds], or [rounds, n]."""
    seconds = {name: [] for name in measures}
    for r in range(rounds):
        for name in random.Random(r).sample(list(measures), len(measures)):
            seconds[name].append(measures[name]())
    return {name: np.array(values) for name, values in seconds.items()}


def time_in_turn(rounds, functions):
    """Seconds [rounds] of each function, warmed up: its first call does not count."""
    for function in functions.values():
        timed(function)
    return in_turn(rounds, {n: lambda f=f: timed(f)[0] for n, f in functions.items()})


def make_steps(setting):
    """The training step compiled, and the very function that is compiled there."""
    step = pure_jax.make_step(pure_jax.make_optimizer(len(setting.x)))
    return {WITHOUT: inspect.unwrap(step), WITH: step}


def cold_start(setting, name):
    """A measure: the seconds of each step, with nothing compiled before the first."""
    batches = list(zip(setting.x, setting.y, strict=True))

    def measure():
        jax.clear_caches()
        step = make_steps(setting)[name]
        params, opt_state, seconds = setting.params, setting.opt_state, []
        for x, y in batches:
            taken, (params, opt_state, _) = timed(step, params, opt_state, x, y)
            seconds.append(taken)
        return seconds

    return measure


def crossover(without, compiled):
    """After how many steps compiling has paid, from the seconds of each step.

    Beyond the steps that were measured, each is taken for the median of their second
    half. None if compiling never pays.
    """
    steps = len(without)
    ahead = np.cumsum(without) - np.cumsum(compiled)
    if (ahead >= 0).any():
        return int(np.argmax(ahead >= 0)) + 1
    gain = np.median(without[steps // 2 :]) - np.median(compiled[steps // 2 :])
    return steps + int(np.ceil(-ahead[-1] / gain)) if gain > 0 else None


def small_calls(operations):
    """A function of next to no computing, called CALLS times: dispatch alone."""

    def small(x):
        for _ in range(operations):
            x = x + 1
        return x

    def repeated(function):
        def run():
            x = jnp.ones(())
            for _ in range(CALLS):
                x = function(x)
            return x

        return run

    return {WITHOUT: repeated(small), WITH: repeated(jax.jit(small))}


def loss_of_one(params, x, y):
    """The loss of one example, x [784], y []."""
    return pure_jax.cross_entropy(params, x[None], y[None])


def over_examples(function, setting):
    """`function(params, x, y)` of each example, compiled and in a loop, or by vmap."""
    params, x, y = setting.params, setting.x[0], setting.y[0]
    one = jax.jit(function)
    every = jax.jit(jax.vmap(function, in_axes=(None, 0, 0)))
    examples = list(zip(x, y, strict=True))
    return {
        "Python loop": lambda: [one(params, *example) for example in examples],
        "vmap": lambda: every(params, x, y),
    }


def loop(step, params, opt_state, batches):
    """The steps in Python: the parameters after them, and the losses."""
    losses = []
    for x, y in batches:
        params, opt_state, loss = step(params, opt_state, x, y)
        losses.append(loss)
    return params, losses


def scan(step, params, opt_state, x, y):
    """The same steps as a loop that is compiled."""

    def body(carry, batch):
        *carry, loss = step(*carry, *batch)
        return tuple(carry), loss

    (params, _), losses = jax.lax.scan(body, (params, opt_state), (x, y))
    return params, losses


def over_steps(setting):
    """The same training: a compiled step in a loop, or the loop compiled with it."""
    params, opt_state, x, y = setting
    step = make_steps(setting)[WITH]
    batches = list(zip(x, y, strict=True))
    scanned = jax.jit(scan, static_argnums=0)
    return {
        "Python loop": lambda: loop(step, params, opt_state, batches),
        "scan": lambda: scanned(step, *setting),
    }


def compilations(setting, few=10):
    """Measures: the seconds of compiling from nothing; a Python loop is unrolled."""
    params, opt_state, x, y = setting
    step = make_steps(setting)[WITHOUT]
    batches = list(zip(x[:few], y[:few], strict=True))

    def compiling(function, *args):
        def measure():
            jax.clear_caches()
            return timed(lambda: jax.jit(function).lower(*args).compile())[0]

        return measure

    return {
        "one step": compiling(step, params, opt_state, x[0], y[0]),
        f"scan over {len(x)} steps": compiling(
            lambda *args: scan(step, *args), *setting
        ),
        f"Python loop over {len(batches)} steps": compiling(
            lambda *args: loop(step, *args), params, opt_state, batches
        ),
    }


def shown(seconds):
    """The median, and in brackets the lowest and the highest, in a fitting unit."""
    middle = np.median(seconds)
    scale, unit = next(
        (scale, unit)
        for least, scale, unit in ((1, 1, "s"), (1e-3, 1e3, "ms"), (0, 1e6, "us"))
        if middle >= least
    )
    values = scale * np.array([middle, np.min(seconds), np.max(seconds)])
    middle, low, high = (f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in values)
    return f"{middle} {unit} [{low} to {high}]"


def print_rows(title, seconds):
    print(f"\n{title}")
    for name, taken in seconds.items():
        print(f"  {name:32}{shown(taken)}", flush=True)


def gain_of(title, seconds):
    """Print a pair, and how many times faster the second is, round by round."""
    print_rows(title, seconds)
    slow, fast = seconds.values()
    low, middle, high = gain = np.quantile(slow / fast, [0, 0.5, 1])
    print(f"  {'times faster':32}{middle:.3g} [{low:.3g} to {high:.3g}]", flush=True)
    return gain


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Time jit, vmap and scan against what they replace.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    args = parser.parse_args(arguments)
    steps, setting, gains = args.steps, make_setting(args.steps), {}

    cold_start(setting, WITH)()  # what a process does once is not what is measured
    cold = in_turn(args.rounds, {n: cold_start(setting, n) for n in (WITHOUT, WITH)})
    print_rows("the first training step", {n: s[:, 0] for n, s in cold.items()})
    late = {n: np.median(s[:, steps // 2 :], axis=1) for n, s in cold.items()}
    gains["jit: a training step"] = gain_of("a later training step", late)
    print_rows(f"{steps} steps, all in all", {n: s.sum(1) for n, s in cold.items()})
    rounds = list(zip(cold[WITHOUT], cold[WITH], strict=True))
    print(f"""
after how many steps compiling has paid, round by round
  from a cold start               {[crossover(*both) for both in rounds]}
  with each operation compiled    {[crossover(s[1:], c[:-1]) for s, c in rounds]}""")

    def compare(label, title, functions, times=1):
        seconds = time_in_turn(args.rounds, functions)
        seconds = {name: taken / times for name, taken in seconds.items()}
        gains[label] = gain_of(title, seconds)

    for n, name in ((1, "1 addition"), (20, "20 additions")):
        compare(f"jit: {name}", f"a function of {name}", small_calls(n), CALLS)
    for name, function in (("loss", loss_of_one), ("gradient", jax.grad(loss_of_one))):
        functions = over_examples(function, setting)
        title = f"the {name} of each of {len(setting.y[0])} examples"
        compare(f"vmap: each {name}", title, functions)
    compare(f"scan: {steps} steps", f"{steps} steps", over_steps(setting))
    small = over_steps(make_setting(steps, *SMALL))
    title = f"{steps} steps of a small network, 784-16-10, batch 8"
    compare(f"scan: {steps} small steps", title, small)
    print_rows("compiling", in_turn(args.rounds, compilations(setting)))

    if args.plot:
        plot(args.plot, cold, gains)
        print(f"\npicture: {args.plot}")


def plot(path, cold, gains):
    """Seconds since a cold start over steps, and how much faster each tool is."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, (course, bars) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    curves = cold | {f"{WITHOUT}, operations compiled": cold[WITHOUT][:, 1:]}
    for name, seconds in curves.items():
        total = np.cumsum(seconds, axis=1)
        steps = np.arange(1, total.shape[1] + 1)
        color = course.plot(steps, np.median(total, axis=0), label=name)[0].get_color()
        course.fill_between(steps, total.min(0), total.max(0), color=color, alpha=0.2)
    course.set(
        xlabel="training steps", ylabel="seconds since a cold start", ylim=(0, None)
    )
    course.legend()
    for place, (low, middle, high) in enumerate(gains.values()):
        bars.barh(place, middle - 1, left=1, color="C1", alpha=0.7)
        bars.plot([low, high], [place, place], color="0.2", lw=1.5)
        bars.text(max(high, 1) * 1.1, place, f"{middle:.3g}x", va="center")
    bars.axvline(1, color="0.5", lw=1, ls="--")
    bars.set_xscale("log")
    bars.set_xlim(right=bars.get_xlim()[1] * 2)
    bars.xaxis.set_major_formatter("{x:g}x")
    bars.set_yticks(range(len(gains)), list(gains))
    bars.set(xlabel="times faster: median, and range of the rounds")
    bars.invert_yaxis()
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
