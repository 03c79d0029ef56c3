"""Bare `nox` runs what CI runs: lint, typecheck, tests and the examples in short form.

`nox -l` lists everything. The long sessions (`bench`, `peers`) are run by name.
"""

import shutil
import sys

import nox

nox.options.sessions = ["lint", "typecheck", "tests", "examples"]
nox.options.error_on_external_run = True
nox.options.reuse_existing_virtualenvs = True

CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = ["3.11", "3.12", "3.13"]
# The oldest versions that pyproject.toml allows, together.
OLDEST = ["jax==0.7.2", "jaxlib==0.7.2", "equinox==0.13.2", "optax==0.2.6"]
PYPROJECT = nox.project.load_toml("pyproject.toml")


def group(name):
    """The requirements of a dependency group."""
    return nox.project.dependency_groups(PYPROJECT, name)


def run_tests(session, *constraints):
    session.install("-e", ".", *group("tests"), *constraints)
    session.run("pytest", *session.posargs)


@nox.session(python=CURRENT)
def tests(session):
    """The test suite on the current Python, with the newest jax that it takes."""
    run_tests(session)


@nox.session(python=[p for p in PYTHONS if shutil.which(f"python{p}")])
def matrix(session):
    """The test suite on every Python found, with the newest jax that each takes."""
    run_tests(session)


@nox.session(python=CURRENT)
def oldest(session):
    """The test suite with the oldest supported jax, equinox and optax."""
    run_tests(session, *OLDEST)


@nox.session(python=CURRENT)
def lint(session):
    """Style."""
    session.install("ruff>=0.9")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=CURRENT)
def typecheck(session):
    """Static types."""
    session.install("-e", ".[examples]", "pyright[nodejs]>=1.1.400", "nox")
    session.run("pyright")


@nox.session(python=CURRENT)
def examples(session):
    """Each example in a short form, as a program."""
    session.install("-e", ".[examples]")
    picture = session.create_tmp()
    session.run(
        "python", "examples/mnist.py", "--epochs", "2", "--plot", f"{picture}/mnist.png"
    )
    session.run("python", "examples/pure_jax.py", "--epochs", "1")


@nox.session(python=CURRENT)
def docs(session):
    """The documentation, strictly."""
    session.install("-e", ".", *group("docs"))
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session(python=CURRENT)
def bench(session):
    """The numbers of docs/benchmarks.md, as ratios inside one run."""
    session.install("-e", ".[examples]")
    for name in session.posargs or ["fit_epoch", "fit_cost", "accuracy"]:
        session.run("python", f"tests/benchmarks/{name}.py")


@nox.session(python=CURRENT)
def peers(session):
    """The same epoch in other frameworks, beside ours."""
    session.install("-e", ".", *group("peers"))
    session.run("python", "tests/benchmarks/peers.py", *session.posargs)
