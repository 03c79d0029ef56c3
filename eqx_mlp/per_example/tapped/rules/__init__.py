"""From a site's operands and cotangents to its parameters' gradients, unformed.

A rule is a function `forms(site) -> {operand position: Form}` in a file of its own,
listed here under the primitives it knows. It may return None where it does not apply.
Whatever is not listed is right all the same, by `anything`.
"""

from .._form import Form
from .._program import Equation
from .._site import Site
from . import anything, conv, dot_general, dynamic_slice, gather, remat

RULES = {
    # `jax.checkpoint` under its names of all versions.
    "checkpoint": remat.forms,
    "remat": remat.forms,
    "remat2": remat.forms,
    "conv_general_dilated": conv.forms,
    "dot_general": dot_general.forms,
    "dynamic_slice": dynamic_slice.forms,
    "gather": gather.forms,
}


def forms(site: Site) -> dict[int, Form]:
    """The gradients of the parameters that enter `site`, by operand position."""
    rule = RULES.get(site.equation.name)
    found = None if rule is None else rule(site)
    return anything.forms(site) if found is None else found


def reads(equation: Equation) -> bool:
    """Whether the rule of a site looks at its operands: not where it only adds."""
    return equation.name not in anything.ADDITIVE
