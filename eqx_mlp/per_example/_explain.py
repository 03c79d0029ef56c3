"""What the tapped engine does with a loss, parameter by parameter."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from .._types import Key, Loss, Model, Trainable
from ._batch import require_batch
from ._loss import split_trainable, value_of_params
from ._vmap import examples_of
from .tapped import Cost, Engine


@dataclasses.dataclass(frozen=True)
class ParameterPlan:
    """How one parameter's norms and sums come about.

    `sites` are the places where it meets the example: the primitive and the shapes of
    its operands. `rule` is how the norm is found. FLOPs and bytes are those of the
    whole batch, beyond the one backward pass.
    """

    path: str
    shape: str
    sites: tuple[str, ...]
    rule: str
    cost: Cost


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A table, one row a parameter; print it."""

    parameters: tuple[ParameterPlan, ...]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Paths of the parameters whose gradients are formed for want of a rule."""
        return tuple(p.path for p in self.parameters if "fallback" in p.rule)

    def __str__(self) -> str:
        header = (
            ("parameter", "shape", "rule", "norm FLOPs", "sum FLOPs", "bytes", "sites"),
        )
        rows = [
            (
                p.path,
                p.shape,
                p.rule,
                f"{p.cost.norm_flops:,}",
                f"{p.cost.sum_flops:,}",
                f"{p.cost.bytes:,}",
                "; ".join(p.sites),
            )
            for p in self.parameters
        ]
        widths = [max(map(len, column)) for column in zip(*header, *rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if 3 <= i <= 5 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (*header, *rows)
        )


def explain(
    loss: Loss, *, has_aux: bool = False, trainable: Trainable = None
) -> Callable[..., Explanation]:
    """How `method="auto"` finds the norms and clipped sums of a loss.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves count, as in `per_example_value_and_grad`.

    Returns:
        `f(model, *batch, key=None) -> Explanation`, which prints as a table of each
        parameter, the rule chosen, its cost, and where it meets the example. Rules are
        `|a||d|`, `Gram` and `formed` for products and tables, `direct` for what adds
        or scales, `pulled back` for a parameter that is changed before it is used,
        `fallback` where the VJP of one equation forms the gradients. Nothing is run.

    >>> import jax
    >>> from eqx_mlp import MLP, explain, losses
    >>> model = MLP(4, 3, (8,), key=jax.random.key(0))
    >>> x, y = jax.numpy.ones((5, 4)), jax.numpy.zeros(5, int)
    >>> plan = explain(losses.cross_entropy)(model, x, y)
    >>> [(p.path, p.rule) for p in plan.parameters][:2]
    [('.layers[0].weight', '|a||d|'), ('.layers[0].bias', 'direct')]
    """

    def f(model: Model, *batch: Any, key: Key | None = None) -> Explanation:
        require_batch("explain", batch)
        plans: list[ParameterPlan] = []

        def look(model_arrays: Any, batch: tuple, key: Key | None) -> None:
            params, rest = split_trainable(rebuild(model_arrays), trainable)
            rows = examples_of(batch, key, None).rows
            engine = Engine(value_of_params(loss, rest, has_aux), params, rows)
            _, _, gradients = engine.backward(rows)
            paths = jax.tree_util.tree_leaves_with_path(params)
            for (path, leaf), value in zip(paths, engine.program.params, strict=True):
                form = gradients.by_parameter.get(value)
                plans.append(
                    ParameterPlan(
                        jax.tree_util.keystr(path),
                        f"{leaf.dtype.name}{list(leaf.shape)}",
                        engine.sites_of(value),
                        "unused" if form is None else form.route,
                        Cost(0, 0, 0) if form is None else form.cost(),
                    )
                )

        arrays, rebuild = split_arrays(model)
        jax.eval_shape(look, arrays, batch, key)
        return Explanation(tuple(plans))

    return f


def split_arrays(model: Model) -> tuple[list, Callable[[list], Model]]:
    """The arrays of a model, and the model from its arrays."""
    leaves, tree = jax.tree.flatten(model)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def rebuild(arrays: list) -> Model:
        filled = list(leaves)
        for i, array in zip(places, arrays, strict=True):
            filled[i] = array
        return jax.tree.unflatten(tree, filled)

    return [leaves[i] for i in places], rebuild
