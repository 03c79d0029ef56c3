"""How every benchmark here measures: interleaved rounds, medians, ratios in one run."""

import random
import statistics
import time


def interleaved(rounds, **functions):
    """The seconds of each function, all of them once a round, after a warm-up round.

    Each round has an order of its own: what ran before leaves its mark on what follows.
    """
    seconds = {name: [] for name in functions}
    shuffled = random.Random(0)
    for r in range(rounds + 1):
        for name in shuffled.sample(list(functions), len(functions)):
            function = functions[name]
            started = time.perf_counter()
            taken = function()
            taken = time.perf_counter() - started if taken is None else taken
            if r:
                seconds[name].append(taken)
    return seconds


def table(seconds, base):
    """Print medians, spread and ratios against `base`."""
    reference = statistics.median(seconds[base])
    print(f"{'':28}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}")
    for name, values in seconds.items():
        median = statistics.median(values)
        low, high = min(values), max(values)
        print(
            f"{name:28}{median * 1e3:8.1f}ms{low * 1e3:8.1f}ms{high * 1e3:8.1f}ms"
            f"{median / reference:8.3f}"
        )
