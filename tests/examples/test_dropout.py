"""The dropout example's table."""

import importlib.util
import pathlib

import numpy as np

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "dropout.py"


def load():
    spec = importlib.util.spec_from_file_location("dropout_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_pairs_networks_of_the_same_seed():
    on_test = np.array([[0.90, 0.92], [0.94, 0.96]])
    on_training = np.array([[1.0, 0.98], [1.0, 0.98]])
    header, first, second = load().table([0.0, 0.5], on_test, on_training).splitlines()
    assert header.split() == ["dropout", "training", "test", "test", "-", "first"]
    # 2 / sqrt(2) is the deviation of 90 and 94; both seeds gain exactly 2.
    assert first.split("%") == ["      0    100.00 ± 0.00 ", "     92.00 ± 2.83 ", ""]
    assert second.split("%")[2].split() == ["+2.00", "±", "0.00"]
