"""What a compiled program sends between devices, read from its text."""

import math
import re

COLLECTIVE = re.compile(
    r"= (?P<shape>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|all-to-all|"
    r"reduce-scatter|collective-permute)(-start)?\("
)
BYTES = {"pred": 1, "s32": 4, "u32": 4, "f32": 4, "f64": 8, "bf16": 2, "f16": 2}


def collectives(text):
    """Each collective's kind, and the bytes of its result, in the program's order."""
    found = []
    for match in COLLECTIVE.finditer(text):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", match["shape"])
        sizes = [
            BYTES[dtype] * math.prod(int(n) for n in shape.split(",") if n)
            for dtype, shape in arrays
        ]
        found.append((match["kind"], sum(sizes)))
    return found
