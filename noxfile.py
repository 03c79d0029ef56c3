"""Bare `nox` runs what CI runs: lint, typecheck, tests and the examples in short form.

`nox -l` lists everything. The long sessions (`bench`, `kills`, `peers`) are run by
name.
"""

import subprocess
import sys

import nox

CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"


def is_there(version):
    """Whether this Python runs; a version manager's stub may be there and not run."""
    try:
        return not subprocess.run(
            [f"python{version}", "--version"], capture_output=True, check=False
        ).returncode
    except OSError:
        return False


FOUND = [v for v in ("3.11", "3.12", "3.13", "3.14") if v == CURRENT or is_there(v)]
# The oldest versions that pyproject.toml allows, together; and whatever is newest.
JAX = {
    "newest": [],
    "oldest": [
        "jax==0.7.2",
        "jaxlib==0.7.2",
        "equinox==0.13.2",
        "optax==0.2.6",
        "orbax-checkpoint==0.11.31",
        "scikit-learn==1.7.0",
    ],
}
BENCHMARKS = [
    "fit_epoch",
    "fit_cost",
    "accuracy",
    "clipped",
    "clipped_limits",
    "checkpoint",
    "ensemble",
    "mesh",
    "precision",
    "scores",
    "estimators",
    "optimizers",
    "private",
]
PYPROJECT = nox.project.load_toml("pyproject.toml")

nox.options.sessions = ["lint", "typecheck", f"tests-{CURRENT}(newest)", "examples"]
nox.options.error_on_external_run = True
nox.options.reuse_existing_virtualenvs = True


def group(name):
    """The requirements of a dependency group."""
    return nox.project.dependency_groups(PYPROJECT, name)


@nox.session(python=FOUND)
@nox.parametrize("jax", [nox.param(name, id=name) for name in JAX])
def tests(session, jax):
    """The test suite on each Python found, with the newest jax and the oldest."""
    session.install("-e", ".", *group("tests"), *JAX[jax])
    session.run("pytest", "-n", "2", *session.posargs)


@nox.session(python=FOUND)
@nox.parametrize("jax", [nox.param(name, id=name) for name in JAX])
def long(session, jax):
    """The tapped engine on many more programs, and all of scikit-learn's checks."""
    session.install("-e", ".", *group("tests"), "flax", *JAX[jax])
    tests = session.posargs or ["tests/per_example", "tests/interop/test_sklearn.py"]
    session.run("pytest", "-n", "2", *tests, env={"EQX_MLP_LONG_TESTS": "1"})


@nox.session(python=CURRENT)
def lint(session):
    """Style."""
    session.install("ruff>=0.9")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=CURRENT)
def typecheck(session):
    """Static types."""
    session.install("-e", ".[examples,sklearn]", "pyright[nodejs]>=1.1.400", "nox")
    session.run("pyright")


@nox.session(python=CURRENT)
def examples(session):
    """Each example in a short form, as a program."""
    session.install("-e", ".[examples,privacy]")
    picture = session.create_tmp()
    session.run(
        "python", "examples/mnist.py", "--epochs", "2", "--plot", f"{picture}/mnist.png"
    )
    best = ["--preset", "best", "--epochs", "1", "--widths", "64"]
    session.run("python", "examples/mnist.py", *best)
    session.run("python", "examples/pure_jax.py", "--epochs", "1")
    for name in ("hard_examples", "mislabelled", "batch_size"):
        short = ["--epochs", "1", "--images", "6000", "--plot", f"{picture}/{name}.png"]
        session.run("python", f"examples/{name}.py", *short)
    few = ["--seeds", "2", "--images", "500", "--epochs", "1"]
    session.run("python", "examples/dropout.py", *few, "--plot", f"{picture}/d.png")
    session.run(
        "python", "examples/data_parallel.py", "--devices", "2", "--epochs", "1"
    )
    private = ["--epochs", "1", "--epsilon", "8", "--plot", f"{picture}/private.png"]
    session.run("python", "examples/private_mnist.py", *private)


@nox.session(python=CURRENT)
def docs(session):
    """The documentation, strictly."""
    session.install("-e", ".", *group("docs"))
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session(python=CURRENT)
def bench(session):
    """The numbers of docs/benchmarks.md, as ratios inside one run."""
    session.install("-e", ".[examples,sklearn,privacy]")
    for name in session.posargs or BENCHMARKS:
        session.run("python", f"tests/benchmarks/{name}.py")


@nox.session(python=CURRENT)
def kills(session):
    """A run on MNIST, killed fifty times, ends bit for bit as one left alone."""
    session.install("-e", ".[checkpoint]")
    session.run("python", "tests/train/kills.py", *session.posargs)


@nox.session(python=CURRENT)
def peers(session):
    """Other libraries beside ours: do they agree, and how long do they take."""
    session.install("-e", ".", *group("tests"), *group("peers"))
    if not session.posargs:
        tests = ["tests/interop", "tests/test_display.py", "tests/test_docs.py"]
        tests += ["tests/examples/test_frameworks.py"]
        session.run("pytest", *tests)
    for name in session.posargs or ["peers", "clipped_peers", "private_peers"]:
        session.run("python", f"tests/benchmarks/{name}.py")
