"""Run a program with a zero added at each site: one backward pass tells it all.

The gradient with respect to a zero added to a site's output is that output's cotangent
`d`. With the operands `a` handed out beside it, `(a, d)` determines the gradient of the
parameters that enter the site, and no such gradient has been formed yet.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._program import Equation, Mark, Program, Scan, Value

# For each site by its number: arrays, with an axis for each loop the site is in.
BySite = dict[int, tuple]


class Tape(eqx.Module):
    """What the backward pass leaves: for each site its operands and cotangents.

    All have the batch in front, then an axis for each loop. `operands` are those that
    the example touched, `cotangents` those of the outputs that can have one.
    """

    operands: BySite
    cotangents: BySite


class Taps:
    """A program ready to be run with taps at `sites`.

    `reads(site)` says whether the rule of that site looks at its operands at all.
    """

    def __init__(self, program: Program, reads: Any) -> None:
        self.program = program
        self.sites = program.sites()
        self.number = {site: i for i, site in enumerate(self.sites)}
        self.reads = reads

    def zeros(self) -> BySite:
        """The taps."""
        return {
            i: tuple(
                jnp.zeros((*(loop.length for loop in site.loops), *v.shape), v.dtype)
                for v in tapped(site)
            )
            for i, site in enumerate(self.sites)
        }

    def backward(self, env: dict[Value, Any], example: list) -> tuple[Any, Any, Tape]:
        """Loss, auxiliary output and tape of a batch: one `vmap` of one backward."""
        program = self.program

        def planted(taps: BySite, one: list) -> tuple:
            inner = env | dict(zip(program.example, one, strict=True))
            operands = self.run(program.body, inner, taps)
            aux = [inner[v] for v in program.aux]
            return inner[program.value], (aux, operands)

        def of_one(one: list) -> tuple:
            value, back, (aux, operands) = jax.vjp(
                lambda taps: planted(taps, one), self.zeros(), has_aux=True
            )
            (cotangents,) = back(jnp.ones_like(value))
            return (
                value,
                jax.tree.unflatten(program.aux_tree, aux),
                operands,
                cotangents,
            )

        value, aux, operands, cotangents = jax.vmap(of_one)(example)
        return value, aux, Tape(operands, cotangents)

    def run(
        self, body: tuple[Equation | Scan, ...], env: dict[Value, Any], taps: BySite
    ) -> BySite:
        """Evaluate `body` into `env`; returns the operands of its sites."""
        operands = {}
        for item in body:
            if isinstance(item, Scan):
                operands |= self.run_scan(item, env, taps)
                continue
            outputs = item.bind(*(env[v] for v in item.inputs))
            env |= dict(zip(item.outputs, outputs, strict=True))
            number = self.number.get(item)
            if number is None:
                continue
            for v, tap in zip(tapped(item), taps[number], strict=True):
                env[v] = jax.lax.add(env[v], tap)
            if self.reads(item):
                operands[number] = tuple(env[item.inputs[i]] for i in read_by(item))
        return operands

    def run_scan(self, scan: Scan, env: dict[Value, Any], taps: BySite) -> BySite:
        """The scan, with taps as rows that go in and operands as rows that come out."""
        inside = self.sites_in(scan.body)
        stacked = scan.stacked()

        def step(carry: list, row: tuple) -> tuple:
            xs, fixed, taps = row
            inner = env | dict(zip(scan.carry, carry, strict=True))
            inner |= dict(zip(scan.x, xs, strict=True))
            inner |= dict(zip(stacked, fixed, strict=True))
            operands = self.run(scan.body, inner, taps)
            out = [strong(inner[v]) for v in scan.carry_out]
            return out, ([inner[v] for v in scan.y], operands)

        final, (ys, operands) = jax.lax.scan(
            step,
            [strong(env[v]) for v in scan.init],
            (
                [env[v] for v in scan.xs],
                [env[v] for v in stacked],
                {i: taps[i] for i in inside},
            ),
            length=scan.loop.length,
            reverse=scan.loop.reverse,
            unroll=scan.loop.unroll,
        )
        env |= dict(zip(scan.final, final, strict=True))
        env |= dict(zip(scan.ys, ys, strict=True))
        return operands

    def sites_in(self, body: tuple[Equation | Scan, ...]) -> list[int]:
        """The numbers of the sites in `body`, at any depth."""
        found = []
        for item in body:
            if isinstance(item, Scan):
                found += self.sites_in(item.body)
            elif item in self.number:
                found.append(self.number[item])
        return found


def tapped(site: Equation) -> list[Value]:
    """The outputs that can carry a gradient."""
    return [v for v in site.outputs if v.differentiable]


def read_by(site: Equation) -> list[int]:
    """The positions of the operands that the example touched."""
    return [i for i, v in enumerate(site.inputs) if v.mark is Mark.EXAMPLE]


def strong(x: Any) -> Any:
    """Without a weak type, which a tap would take away between two steps."""
    inexact = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    return jax.lax.convert_element_type(x, x.dtype) if inexact else x
