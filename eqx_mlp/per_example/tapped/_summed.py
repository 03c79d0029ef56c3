"""Sums of forms over the batch, without the examples that are not finite."""

from typing import Any

from jaxtyping import Array, Inexact

from .._choose import choose
from ._form import Form, Shared

# (number of the value, group of parameters in it)
At = tuple[int, int]
Sums = dict[At, Inexact[Array, "..."]]


def summed(forms: dict[At, Form], finite: Any) -> Sums:
    """The sum of each form, which has been scaled with silence unless all is `finite`.

    0 * NaN is NaN: where an example is not finite, the sums are those of forms in which
    such entries have been replaced. These take memory. So there is a branch for each
    sum, one after the other, that of the largest arrays last, when others are no longer
    needed: whether all is finite, each branch tells the next.
    """
    jobs: dict[Any, dict[At, Form]] = {}
    for at, form in forms.items():
        jobs.setdefault((form.work, at[1]), {})[at] = form
    found: Sums = {}
    for job in sorted(jobs.values(), key=_loud):
        if not _loud(job):
            found |= _sums(job)
            continue
        new, finite = choose(
            finite,
            lambda job=job: (_sums(job), True),
            lambda job=job: (_silenced(job), False),
        )
        found |= new
    return found


def _loud(job: dict[At, Form]) -> int:
    return sum(form.loud for form in job.values())


def _sums(job: dict[At, Form]) -> Sums:
    shared: Shared = {}
    return {at: form.sum(shared) for at, form in job.items()}


def _silenced(job: dict[At, Form]) -> Sums:
    return _sums({at: form.silenced() for at, form in job.items()})
