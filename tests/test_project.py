"""The project's own promises: light imports, rooms that import downwards, CI."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A room may import itself and what stands above it in this list of levels.
LEVELS = [
    {"_checked", "_display", "_dtypes", "_keys", "_known", "_select", "_types"},
    {"nn", "losses", "metrics", "data"},
    {"distributed"},
    {"per_example"},
    {"train"},
    {"privacy", "interop"},
]


def test_importing_the_library_imports_nothing_heavy():
    heavy = ["beartype", "matplotlib", "pooch", "tqdm", "torch", "flax", "orbax"]
    heavy += ["jax_privacy", "dp_accounting", "safetensors", "clu", "treescope"]
    heavy += ["sklearn"]
    code = f"""
import jax, equinox, optax, sys
before = set(sys.modules)
import eqx_mlp, eqx_mlp.interop.jax_privacy, eqx_mlp.interop.weights
import eqx_mlp.interop.clu, eqx_mlp.interop.export, eqx_mlp.privacy
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(new & set({heavy!r})))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


MODULES = sorted((ROOT / "eqx_mlp").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_downwards(path):
    package = ("eqx_mlp", *path.relative_to(ROOT / "eqx_mlp").parts[:-1])
    room = (*package[1:], path.stem)[0]
    level = next((i for i, names in enumerate(LEVELS) if room in names), None)
    if level is None:
        assert room == "__init__"  # the public face imports every room
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = package[: len(package) - node.level + 1]
        targets = (
            [(*base, *node.module.split("."))]
            if node.module
            else [(*base, alias.name) for alias in node.names]
        )
        for target in targets:
            other = target[1]
            other_level = next(i for i, names in enumerate(LEVELS) if other in names)
            assert other_level <= level, f"{room} imports {other}"
            if room != other and level == 1 and other_level == 1:
                assert (room, other) == ("metrics", "losses")


def test_string_annotations_switch_the_shape_checker_off_nowhere():
    for path in MODULES:
        assert "from __future__ import annotations" not in path.read_text("utf-8")


def test_ci_runs_exactly_the_readmes_test_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    assert f"```sh\n{command}\n```" in readme
