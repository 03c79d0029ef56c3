"""The documentation: its code runs, prints what it says, and names all that is public.

A page's ```python blocks run in order in one namespace, and so do its ```pytorch ones,
which are shown for comparison, in `nox -s peers`. A ```text block right after one
is what it prints, or, where it begins with the name of an error, the error it raises.
Line breaks in it are free, so that a page need not scroll; `...` stands for anything.
The tests' strict promotion refuses what JAX's default allows and changes nothing else,
so what passes here runs by default too.

A page about other libraries names those beyond the tests' own in a first line,
`<!-- needs: torch -->`, and is skipped where they are missing; `nox -s peers` has all.
"""

import ast
import contextlib
import importlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if page.exists()
]
NEEDS = re.compile(r"\A<!-- needs: (.*) -->$", re.MULTILINE)
FENCE = r"^```{}[^\n]*\n(?P<code>.*?)^```\n(?:\n*^```text[^\n]*\n(?P<shown>.*?)^```\n)?"
ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Warning): ")


class Block(NamedTuple):
    line: int
    code: str
    shown: str | None


def blocks_of(page, language="python"):
    text = page.read_text(encoding="utf-8")
    fence = re.compile(FENCE.format(language), re.MULTILINE | re.DOTALL)
    return [
        Block(text.count("\n", 0, match.start("code")), match["code"], match["shown"])
        for match in fence.finditer(text)
    ]


def run(page, block, namespace):
    """What the block prints, or the error it raises as Python would print it."""
    # Blank lines before it give a traceback the line in the page.
    code = compile("\n" * block.line + block.code, str(page), "exec")
    printed = io.StringIO()
    raises = block.shown is not None and ERROR.match(block.shown)
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, namespace)
        except Exception as error:
            if not raises:
                raise
            return f"{type(error).__name__}: {error}"
    assert not raises, f"{page.name}:{block.line}: no error, but: {block.shown}"
    return printed.getvalue()


def is_as_shown(printed, shown):
    pattern = re.escape(" ".join(shown.split())).replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, " ".join(printed.split()))


def check(page, language="python"):
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page, language):
        printed = run(page, block, namespace)
        if block.shown is not None:
            assert is_as_shown(printed, block.shown), (
                f"{page.name}:{block.line} gives\n{printed}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    needs = NEEDS.search(page.read_text(encoding="utf-8"))
    for name in needs[1].split(", ") if needs else ():
        pytest.importorskip(name)
    check(page)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch, for its own use
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks_of(page, "pytorch")],
    ids=lambda page: page.name,
)
def test_what_a_page_says_of_pytorch_holds_where_that_is_installed(page):
    pytest.importorskip("torch")
    check(page, "pytorch")


def test_every_fence_that_looks_like_python_is_run():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r"^\s*(?:```|~~~)\s*(?:python|py)\b", text, re.MULTILINE)
        assert len(found) == len(blocks_of(page)), page.name


def test_a_fence_that_is_not_run_shows_a_file_of_the_examples():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = re.findall(r'\{ \.python \}\n +--8<-- "(examples/.+)"\n +```\n', text)
        assert len(shown) == text.count("{ .python }"), page.name
        for path in shown:
            assert (ROOT / path).is_file(), path


ROOMS = [
    "eqx_mlp",
    "eqx_mlp.nn",
    "eqx_mlp.losses",
    "eqx_mlp.metrics",
    "eqx_mlp.data",
    "eqx_mlp.distributed",
    "eqx_mlp.per_example",
    "eqx_mlp.train",
    "eqx_mlp.privacy",
    "eqx_mlp.interop.jax_privacy",
    "eqx_mlp.interop.weights",
    "eqx_mlp.interop.export",
    "eqx_mlp.interop.clu",
    "eqx_mlp.interop.sklearn",
]


def public_names(module):
    """`__all__`; else `from ._x import X as X`, and what the module itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    names = []
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom():
                names += [a.asname for a in node.names if a.asname == a.name]
            case ast.FunctionDef() | ast.ClassDef():
                names.append(node.name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
    return [name for name in names if not name.startswith("_")]


def resolve(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


ENTRIES = {
    entry
    for page in ROOT.glob("docs/api/*.md")
    for entry in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_an_entry_in_the_api(room):
    documented = {id(resolve(entry)) for entry in ENTRIES}
    module = importlib.import_module(room)
    public = {name: getattr(module, name) for name in public_names(module)}
    assert public
    missing = [
        name
        for name, value in public.items()
        # A room that another one re-exports is looked at for itself.
        if getattr(value, "__name__", None) not in ROOMS and id(value) not in documented
    ]
    assert not missing


def test_every_entry_of_the_api_is_public():
    public = {
        f"{room}.{name}"
        for room in ROOMS
        for name in public_names(importlib.import_module(room))
    }
    assert public >= ENTRIES
