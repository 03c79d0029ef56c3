"""Norms and clipped sums against the plain batch gradient, in one run.

    python tests/benchmarks/clipped.py [rounds]

For each net and batch: the median over rounds of the ratio to the gradient of the mean
loss (all of them compiled, run in turn, waited for), then XLA's own figures: peak bytes
as arguments + outputs + temporaries, FLOPs, and the time to compile, the median of
five. Tracing does not count. `clipped_grad` gives the losses, as does the second line.
"""

import statistics
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_mlp import clipped_grad, per_example_grad_norm
from eqx_mlp.losses import cross_entropy

NETS = (
    ((784, 256, 128, 10), 256),
    ((784, 256, 128, 10), 1024),
    ((784, 2048, 2048, 10), 256),
)


def net(sizes, key):
    keys = jax.random.split(key, len(sizes) - 1)
    layers = []
    for fan_in, fan_out, k in zip(sizes[:-1], sizes[1:], keys, strict=True):
        layers += [eqx.nn.Linear(fan_in, fan_out, key=k), eqx.nn.Lambda(jax.nn.relu)]
    return eqx.nn.Sequential(layers[:-1])


def gradient_and_losses(model, x, y):
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def mean_loss(params):
        model = eqx.combine(params, static)
        losses = jax.vmap(cross_entropy, in_axes=(None, 0, 0))(model, x, y)
        return jnp.mean(losses), losses

    return jax.grad(mean_loss, has_aux=True)(params)


def mean_gradient(model, x, y):
    return gradient_and_losses(model, x, y)[0]


def seconds_to_compile(f, *args):
    jax.clear_caches()
    lowered = jax.jit(f).lower(*args)
    started = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - started


def compiled(f, *args):
    """The compiled function and its own figures."""
    program = jax.jit(f).lower(*args).compile()
    memory, cost = program.memory_analysis(), program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
    )
    return program, {"bytes": peak, "flops": cost["flops"]}


def measure(sizes, batch, rounds):
    model = net(sizes, jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    x = jax.random.uniform(jax.random.key(1), (batch, sizes[0]))
    y = jnp.arange(batch) % sizes[-1]
    functions = {
        "plain gradient": mean_gradient,
        "and its losses": gradient_and_losses,
        "clipped_grad": clipped_grad(
            cross_entropy, l2_clip_norm=1.0, normalize_by=float(batch)
        ),
        "grad norms": per_example_grad_norm(cross_entropy),
    }
    programs, figures, seconds = {}, {}, {name: [] for name in functions}
    of_params = {
        name: lambda p, x, y, f=f: f(eqx.combine(p, static), x, y)
        for name, f in functions.items()
    }
    compiling = {name: [] for name in functions}
    for _ in range(6):
        for name, f in of_params.items():
            compiling[name].append(seconds_to_compile(f, params, x, y))
    for name, f in of_params.items():
        programs[name], figures[name] = compiled(f, params, x, y)
        figures[name]["compile"] = statistics.median(compiling[name][1:])
    for r in range(rounds + 3):
        for name, program in programs.items():
            started = time.perf_counter()
            jax.block_until_ready(program(params, x, y))
            if r >= 3:
                seconds[name].append(time.perf_counter() - started)
    plain, base = seconds["plain gradient"], figures["plain gradient"]
    print(f"\n{'-'.join(map(str, sizes))}, batch {batch}")
    print(f"{'':16}{'median':>10}{'time':>8}{'bytes':>8}{'flops':>8}{'compile':>9}")
    for name in functions:
        ratio = statistics.median(
            a / b for a, b in zip(seconds[name], plain, strict=True)
        )
        own = [figures[name][k] / base[k] for k in ("bytes", "flops", "compile")]
        median = statistics.median(seconds[name]) * 1e3
        print(
            f"{name:16}{median:8.2f}ms{ratio:7.2f}x{own[0]:7.2f}x{own[1]:7.2f}x"
            f"{own[2]:8.2f}x"
        )


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 51
    for sizes, batch in NETS:
        measure(sizes, batch, rounds if sizes[1] < 1000 else max(rounds // 4, 5))
