"""Norms and weighted sums of per-example gradients, from one backward pass."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..._dtypes import promote, wide
from ..._types import PerExample
from .._norm import row_norms, sum_dtype
from .._products import added_up
from .._route import Gradients, Route
from ._form import Dense, Form, Shared
from ._prefix import Prefix
from ._program import Mark, Value
from ._rows import Rows
from ._site import Site
from ._summed import summed
from ._taps import Tape, Taps
from ._trace import trace
from .rules import forms, reads


class Engine(Route):
    """A loss traced once for one shape of example, ready for any batch of them."""

    def __init__(self, f: Callable[..., tuple[Any, Any]], params: PyTree, rows: Any):
        self.params, self.tree = jax.tree.flatten(params)
        self.program = trace(f, params, *jax.tree.map(one_of, rows))
        self.prefix = Prefix(self.program)
        self.taps = Taps(self.program, reads)
        self.env = self.program.run_prefix(self.params)

    def backward(self, rows: Any) -> tuple[PerExample, Any, "TappedGradients"]:
        """The loss and auxiliary output of each row, and its gradient unformed."""
        value, aux, tape = self.taps.backward(self.env, jax.tree.leaves(rows))
        return value, aux, TappedGradients(self, tape)

    @functools.cached_property
    def frontier(self) -> tuple[Value, ...]:
        """The values made of parameters that meet the example, in order of use."""
        return tuple(
            dict.fromkeys(
                site.inputs[i] for site in self.taps.sites for i in site.param_operands
            )
        )

    @property
    def rounds_sums(self) -> bool:
        """Whether a sum is taken back by a VJP in a dtype that would round it.

        One example among thousands could then change it by more than its own share.
        """
        made = any(v not in self.prefix.renamings for v in self.frontier)
        return made and any(sum_dtype(v.dtype) != v.dtype for v in self.prefix.sources)

    @functools.cached_property
    def components(self) -> list[tuple[tuple[Value, ...], tuple[Value, ...]]]:
        """Parameters and values that hang together, each parameter in one of them."""
        groups: list[tuple[set, set]] = [({p}, set()) for p in self.program.params]
        for v in self.frontier:
            touching = [g for g in groups if g[0] & self.prefix.sources[v]]
            rest = [g for g in groups if g not in touching]
            params = set().union(*(g[0] for g in touching))
            groups = [*rest, (params, {v}.union(*(g[1] for g in touching)))]
        ordered = [
            (
                tuple(p for p in self.program.params if p in params),
                tuple(v for v in self.frontier if v in values),
            )
            for params, values in groups
        ]
        return ordered

    def keys(self, group_of: tuple[int, ...]) -> list[tuple[int, int]]:
        """What sums are kept: (number of the value, group of parameters in it)."""
        group = dict(zip(self.program.params, group_of, strict=True))
        return [
            (i, g)
            for i, v in enumerate(self.frontier)
            for g in sorted({group[p] for p in self.prefix.sources[v]})
        ]

    def sites_of(self, param: Value) -> tuple[str, ...]:
        """Where a parameter meets the example: primitives and operands."""
        return tuple(
            f"{site.name} " + " ".join(map(repr, site.inputs))
            for site in self.taps.sites
            if any(
                param in self.prefix.sources[site.inputs[i]]
                for i in site.param_operands
            )
        )

    def zero_sums(self, group_of: tuple[int, ...]) -> dict:
        """Sums of no examples, as `weighted_sums` returns them."""
        return {
            (i, g): jnp.zeros(
                self.frontier[i].full_shape, sum_dtype(self.frontier[i].dtype)
            )
            for i, g in self.keys(group_of)
        }

    def finish(self, sums: dict, group_of: tuple[int, ...]) -> PyTree:
        """Sums where parameters meet the example, taken back to the parameters.

        In float32 or wider; a parameter that meets no example gets exact zeros.
        """
        grads = {p: jnp.zeros(p.shape, sum_dtype(p.dtype)) for p in self.program.params}
        rest: dict[int, dict[Value, Any]] = {}
        for (i, g), total in sums.items():
            v = self.frontier[i]
            renaming = self.prefix.renamings.get(v)
            if renaming is None:
                rest.setdefault(g, {})[v] = total
            else:
                p = renaming.param
                grads[p] = grads[p] + renaming.back(total).astype(grads[p].dtype)
        for g, cotangents in rest.items():
            sources = frozenset().union(*(self.prefix.sources[v] for v in cotangents))
            wanted = tuple(
                p
                for p, group in zip(self.program.params, group_of, strict=True)
                if group == g and p in sources
            )
            back = self.prefix.pull_back(self.params, cotangents, wanted)
            for p, grad in zip(wanted, back, strict=True):
                grads[p] = grads[p] + grad.astype(grads[p].dtype)
        return jax.tree.unflatten(self.tree, list(grads.values()))


class TappedGradients(Gradients):
    """The gradients of a batch as the backward pass left them."""

    def __init__(self, engine: Engine, tape: Tape) -> None:
        self.engine = engine
        self.forms: dict[Value, Form] = {}
        for i, equation in enumerate(engine.taps.sites):
            cotangents = tape.cotangents[i]
            operands = None
            if i in tape.operands:
                seen = iter(tape.operands[i])
                operands = tuple(
                    next(seen) if v.mark is Mark.EXAMPLE else engine.env[v]
                    for v in equation.inputs
                )
            found = forms(Site(equation, operands, cotangents))
            for position, form in found.items():
                v = equation.inputs[position]
                old = self.forms.get(v)
                self.forms[v] = form if old is None else added(old, form)

    @functools.cached_property
    def by_parameter(self) -> dict[Value, Form]:
        """The gradient of each parameter that meets the example, all its uses added."""
        forms: dict[Value, Form] = {}
        for params, values in self.engine.components:
            if not values:
                continue
            if (form := self.renamed(params, values)) is not None:
                forms[params[0]] = form
                continue
            if self.engine.prefix.stacks.get(values[0]) == params and not values[1:]:
                whole = self.forms[values[0]]
                forms |= {p: whole.part(i) for i, p in enumerate(params)}
                continue
            grads = jax.vmap(
                lambda cotangents, params=params, values=values: (
                    self.engine.prefix.pull_back(
                        self.engine.params,
                        dict(zip(values, cotangents, strict=True)),
                        params,
                    )
                )
            )([self.forms[v].dense() for v in values])
            for p, g in zip(params, grads, strict=True):
                forms[p] = Dense(g, "pulled back")
        return forms

    def norms(self, then_sum: bool) -> list[PerExample | None]:
        """Each parameter's norms, in order; None for one that meets no example."""
        forms = self.by_parameter
        shared: Shared = {}
        measured = {p: f.measured(shared, then_sum) for p, f in forms.items()}
        arrays = [x for xs in measured.values() for x in xs]
        norms = iter(row_norms(arrays) if arrays else ())
        found = {
            p: form.norms([next(norms) for _ in measured[p]])
            for p, form in forms.items()
        }
        return [found.get(p) for p in self.engine.program.params]

    def second_moments(self, factor: PerExample) -> PyTree:
        """Each parameter's, in its own layout."""
        known = self.engine.prefix.renamings
        alone = [values[0] for _, values in self.engine.components if len(values) == 1]
        # These forms have been left in the layout of what the parameter becomes.
        back = {known[v].param: known[v].back for v in alone if v in known}

        def of_parameter(p: Value) -> Float[Array, "..."]:
            if p not in self.by_parameter:
                return jnp.zeros(p.shape, wide(p.dtype))
            square = self.by_parameter[p].second_moment(factor)
            if p in back:  # where the sign of a parameter is none of its square's
                square = jnp.abs(back[p](square))
            return square.astype(wide(p.dtype))

        squares = map(of_parameter, self.engine.program.params)
        return jax.tree.unflatten(self.engine.tree, list(squares))

    def products(
        self, other: Any, factor: PerExample, other_factor: Float[Array, " other"]
    ) -> Float[Array, "batch other"]:
        """Parameter by parameter."""
        own, others = self.by_parameter, other.by_parameter
        shape = factor.shape[0], other_factor.shape[0]
        zeros = jnp.zeros(shape, wide(factor.dtype))
        return added_up(
            [
                zeros,
                *(
                    form.scaled(factor).products(others[p].scaled(other_factor))
                    for p, form in own.items()
                ),
            ]
        )

    def renamed(
        self, params: tuple[Value, ...], values: tuple[Value, ...]
    ) -> Form | None:
        """One parameter's gradient where all its uses are renamings of it."""
        known = self.engine.prefix.renamings
        if not all(v in known for v in values):
            return None
        if len(values) == 1:
            return self.forms[values[0]]
        back = [known[v].form_back(self.forms[v]) for v in values]
        return functools.reduce(added, back)

    def weighted_sums(
        self, factors: list[PerExample], group_of: tuple[int, ...], finite: Any
    ) -> dict:
        """sum_b factor_b g_b where a parameter meets the example, for each group."""
        frontier, silence = self.engine.frontier, finite is not True
        forms = {
            (i, g): self.forms[frontier[i]].scaled(factors[g], silence)
            for i, g in self.engine.keys(group_of)
        }
        return {
            (i, g): total.astype(sum_dtype(frontier[i].dtype))
            for (i, g), total in summed(forms, finite).items()
        }


def added(a: Form, b: Form) -> Form:
    """The sum of two gradients of one value: cross terms count in its norm."""
    if isinstance(a, Rows) and isinstance(b, Rows):
        joined = a.joined(b)
        if joined is not None:
            return joined
    x, y = a.dense(), b.dense()
    dtype = promote(x.dtype, y.dtype)
    return Dense(x.astype(dtype) + y.astype(dtype), "formed")


def one_of(x: Array) -> jax.ShapeDtypeStruct:
    """What one row of `x` looks like."""
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
