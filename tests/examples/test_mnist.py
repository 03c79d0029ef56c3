"""The options of the MNIST example."""

import importlib.util
import pathlib

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist.py"


def load():
    spec = importlib.util.spec_from_file_location("mnist_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_preset_gives_defaults_that_an_option_overrides():
    example = load()
    usual = vars(example.parse([]))
    for name, preset in example.PRESETS.items():
        got = vars(example.parse(["--preset", name, "--epochs", "3"]))
        assert got == usual | preset | {"preset": name, "epochs": 3}
    assert example.parse(["--preset", "best"]).augment
    assert not example.parse(["--no-augment", "--preset", "best"]).augment
