"""Models that train side by side in one program."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from .._checked import checked
from .._display import mimebundle
from .._dtypes import wide
from .._keys import with_key
from .._known import is_known
from .._select import SETTINGS, Place, places_of
from .._types import ArrayLike, Key, Model, Scalar


def _require(self: Any, models: Any) -> None:
    if not isinstance(models, Sequence) or not models:
        raise ValueError(
            "Ensemble takes a list of models, such as [MLP(4, 2, (8,), key=key) for "
            f"key in jax.random.split(key, 8)], got {models!r}"
        )
    if not any(eqx.is_array(leaf) for leaf in jax.tree.leaves(models[0])):
        raise ValueError("Ensemble: its members hold no array, so there is no model")


class Ensemble(eqx.Module):
    """Models of one form that `fit` trains side by side, in one compiled program.

    Each member is trained on its own: it comes out as `fit(member, key=key)` alone with
    the same key would train it, up to rounding. So all see the data in the same order
    and draw the same dropout masks, and differ by their first weights and by their
    hyper-parameters alone. `fit` and `evaluate` give one value a member.

    `ensemble[i]` is member `i` as a plain model, and `len(ensemble)` their number. As a
    function of one example, an ensemble gives each member's output.

    Source: Lakshminarayanan et al. (2017), "Simple and scalable predictive uncertainty
    estimation using deep ensembles".

    >>> import jax, jax.numpy as jnp
    >>> from eqx_mlp import MLP, Ensemble
    >>> models = [MLP(4, 2, (8,), key=jax.random.key(seed)) for seed in range(3)]
    >>> ensemble = Ensemble(models)
    >>> ensemble(jnp.ones(4)).shape, ensemble.log_probability(jnp.ones(4)).shape
    ((3, 2), (2,))
    """

    members: PyTree

    @checked(_require)
    def __init__(self, models: Sequence[Model]):
        """Stack the models' arrays along a new first axis.

        Args:
            models: of the same structure, shapes and dtypes. Whatever is not an array
                must be the same in all, but for dropout rates, which may differ.

        Raises:
            ValueError: no model, or one that is built differently from the first.
        """
        leaves = [[p for p in places_of(model) if p.is_leaf] for model in models]
        for i, own in enumerate(leaves):
            _require_paths(i, [p.path for p in leaves[0]], [p.path for p in own])
        stacked = [_stacked(places) for places in zip(*leaves, strict=True)]
        structure = jax.tree.structure(models[0])
        for i, model in enumerate(models):
            if jax.tree.structure(model) != structure:
                raise ValueError(
                    f"Ensemble: models[{i}] is built differently from models[0]: their "
                    f"static fields differ, {model} and {models[0]}"
                )
        self.members = jax.tree.unflatten(structure, stacked)

    def __repr__(self) -> str:
        if not any(eqx.is_array(x) for x in jax.tree.leaves(self.members)):
            return eqx.tree_pformat(self)
        return f"Ensemble({len(self)} x {self.members!r})"

    _repr_mimebundle_ = mimebundle

    def __len__(self) -> int:
        return next(x for x in jax.tree.leaves(self.members) if eqx.is_array(x)).shape[
            0
        ]

    def __iter__(self) -> Iterator[Model]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: SupportsIndex) -> Model:
        """Member `i` as a plain model.

        Raises:
            IndexError: there is no such member.
        """
        number = operator.index(i)
        if not -len(self) <= number < len(self):
            raise IndexError(f"member {number} of an ensemble of {len(self)}")

        def with_numbers(node: Any) -> Any:
            if isinstance(node, SETTINGS) and is_known(node):
                return jax.tree.map(lambda x: x.item() if eqx.is_array(x) else x, node)
            return node

        member = jax.tree.map(
            lambda x: x[number] if eqx.is_array(x) else x, self.members
        )
        return jax.tree.map(
            with_numbers, member, is_leaf=lambda x: isinstance(x, SETTINGS)
        )

    def __call__(
        self, x: Shaped[ArrayLike, "..."], *, key: Key | None = None
    ) -> Shaped[Array, "members ..."]:
        """Each member's output for one example; all are handed the same key."""
        return each_member(lambda member: with_key(member, x, key=key), self)

    def log_probability(
        self, x: Shaped[ArrayLike, "..."], *, key: Key | None = None
    ) -> Float[Array, " classes"]:
        """The logarithm of the members' mean probability of each class.

        These are logits: losses, metrics, `evaluate` and `predict` take this method as
        a model.

        Raises:
            ValueError: the members do not give logits `[classes]`.
        """
        of_member = self._log_probabilities(x, key)
        return jax.nn.logsumexp(of_member, axis=0) - jnp.log(
            jnp.asarray(len(self), of_member.dtype)
        )

    def disagreement(
        self, x: Shaped[ArrayLike, "..."], *, key: Key | None = None
    ) -> Scalar:
        """How far the members disagree about the class of one example, in nats.

        The mean over members of KL(member's probabilities || mean probabilities), from
        0, where all agree, to log(members). It is the mutual information of class and
        member: the entropy of the mean less the mean entropy. Source: Houlsby et al.
        (2011), "Bayesian active learning for classification and preference learning".

        Raises:
            ValueError: the members do not give logits `[classes]`.
        """
        of_member = self._log_probabilities(x, key)
        mean = self.log_probability(x, key=key)
        probability = jnp.exp(of_member)
        # What has no probability in a member adds nothing, where log 0 would give NaN.
        ratio = jnp.where(probability > 0, of_member - mean[None, :], 0)
        divergence = jnp.sum(probability * ratio, axis=1)
        return jnp.maximum(jnp.mean(divergence), 0)

    def _log_probabilities(self, x: Any, key: Key | None) -> Array:
        logits = self(x, key=key)
        if logits.ndim != 2 or not jnp.issubdtype(logits.dtype, jnp.floating):
            raise ValueError(
                "Ensemble: probabilities are of members that give one floating-point "
                f"logit a class, shape (classes,), got shape {logits.shape[1:]} and "
                f"dtype {logits.dtype}"
            )
        return jax.nn.log_softmax(logits.astype(wide(logits.dtype)), axis=1)


def each_member(function: Callable[..., Any], model: Model, *stacked: Any) -> Any:
    """`function(model, *stacked)`; of each member at once where there are members.

    The arrays of `stacked` and of the result then have a leading axis of members.
    """
    if isinstance(model, Ensemble):
        return eqx.filter_vmap(function)(model.members, *stacked)
    return function(model, *stacked)


def rebuilt(model: Model, new: Model) -> Model:
    """What `each_member` made of a model, as an ensemble again if it was one."""
    if isinstance(model, Ensemble):
        return eqx.tree_at(lambda ensemble: ensemble.members, model, new)
    return new


def stacked_of(model: Model) -> Model:
    """The members as one model of stacked arrays, or the model itself."""
    return model.members if isinstance(model, Ensemble) else model


def members_of(model: Model) -> list[Model]:
    """Each member as a plain model, or the model itself."""
    return list(model) if isinstance(model, Ensemble) else [model]


def _require_paths(i: int, first: list, own: list) -> None:
    if own != first:
        different = min({*own} ^ {*first}, default=())
        raise ValueError(
            f"Ensemble: models[{i}] is built differently from models[0]: only one of "
            f"them has {'.'.join(different)}"
        )


def _stacked(places: tuple[Place, ...]) -> Any:
    """One leaf of all members, from the places that hold it."""
    values = [place.value for place in places]
    if all(eqx.is_array(x) for x in values):
        forms = [f"{x.dtype}{list(x.shape)}" for x in values]
        if len({*forms}) == 1:
            return jnp.stack(values)
    else:
        first, forms = values[0], [repr(x) for x in values]
        if all(x is first or (type(x) is type(first) and x == first) for x in values):
            return first
        settings = (
            isinstance(places[0].owners[-1], SETTINGS) if places[0].path else False
        )
        if settings and all(_is_number(x) for x in values):
            return jnp.asarray(values, float)
    i = next(i for i, form in enumerate(forms) if form != forms[0])
    raise ValueError(
        "Ensemble: models must be alike but for the values of their arrays, and at "
        f"{'.'.join(places[0].path)} models[0] has {forms[0]} and models[{i}] has "
        f"{forms[i]}"
    )


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)
