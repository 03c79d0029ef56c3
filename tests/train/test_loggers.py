"""Logs: what is in them, whole at any moment, and right after a run that was killed."""

import csv
import json
import logging
import math
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    Callback,
    CSVLogger,
    JSONLogger,
    TensorBoardLogger,
    fit,
)


def run(logger, epochs=2, state=None, **changed):
    """Four steps an epoch."""
    options = {
        "loss": lambda w, x: jnp.square(w - x),
        "optimizer": optax.sgd(0.1),
        "key": jax.random.key(0) if state is None else None,
        "epochs": epochs,
        "batch_size": 2,
        "logger": logger,
        "log_every": 3,
        "progress": False,
    } | changed
    data = (jnp.arange(8.0),)
    return fit(jnp.array(0.0) if state is None else state, data, **options)


class Memory:
    """Somebody's own logger."""

    def __init__(self):
        self.rows = []

    def log(self, step, values):
        self.rows.append((step, values))


def read_json(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read_events(folder):
    """Values as TensorBoard takes them: a start drops what is of its step or later."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    values = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.session_log.status == event.session_log.START:
                values = [value for value in values if value[0] < event.step]
            values += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    return values


def values_of(rows):
    """Rows as single values, in the float32 of event files."""
    return [
        (step, name, pytest.approx(value, rel=1e-7))
        for step, row in rows
        for name, value in row.items()
    ]


def without_times(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_the_losses_of_each_third_step_and_each_epochs_numbers_are_logged():
    memory = Memory()
    validation = (jnp.arange(4.0),)
    _, history = run(memory, validation=validation)
    steps = [(step, row) for step, row in memory.rows if "step_loss" in row]
    assert steps == [
        (3, {"step_loss": float(history["step_loss"][2])}),
        (6, {"step_loss": float(history["step_loss"][5])}),
    ]
    epochs = [(step, row) for step, row in memory.rows if "epoch" in row]
    assert epochs == [
        (
            4 * (i + 1),
            {
                "epoch": i + 1,
                "loss": history["loss"][i],
                "seconds": history["seconds"][i],
                "val_loss": history["val_loss"][i],
            },
        )
        for i in range(2)
    ]
    assert [step for step, _ in memory.rows] == [3, 4, 6, 8]


def test_what_a_callback_measures_is_logged_and_arrays_are_not():
    class Measure(Callback):
        def measure(self, state):
            return {"number": 2.5, "array": np.ones(3)}

    memory = Memory()
    run(memory, epochs=1, callbacks=[Measure()])
    assert memory.rows[-1][1]["number"] == 2.5
    assert "array" not in memory.rows[-1][1]


def test_every_kind_of_logger_holds_the_same_rows(tmp_path):
    memory = Memory()
    table = CSVLogger(tmp_path / "deep" / "log.csv")
    run([memory, tmp_path / "log.jsonl", table, TensorBoardLogger(tmp_path / "tb")])
    rows = [{"step": step, **row} for step, row in memory.rows]
    assert len(rows) == 4
    assert read_json(tmp_path / "log.jsonl") == rows
    for got, wanted in zip(read_csv(table.path), rows, strict=True):
        got = {name: float(value) for name, value in got.items() if value}
        assert got == wanted  # to the last bit
    assert read_events(tmp_path / "tb") == values_of(memory.rows)


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_run_killed_after_its_checkpoint_and_resumed_leaves_the_log_of_the_whole_run(
    kind, tmp_path
):
    logger, read = {
        "json": (JSONLogger(tmp_path / "log"), read_json),
        "csv": (CSVLogger(tmp_path / "log"), read_csv),
    }[kind]
    whole = Memory()
    run(whole, epochs=4)
    half = run(None, epochs=2).state
    # The log of a run that was killed in its third epoch, in the middle of a line.
    run(logger, epochs=3)
    with open(logger.path, "a") as file:
        file.write('{"step": 1')
    run(logger, epochs=4, state=half)
    rows = read(tmp_path / "log")
    if kind == "csv":
        rows = [{k: float(v) for k, v in row.items() if v} for row in rows]
    wanted = without_times({"step": step, **row} for step, row in whole.rows)
    approx = [{k: pytest.approx(v, rel=1e-6) for k, v in row.items()} for row in wanted]
    assert without_times(rows) == approx
    assert [row["step"] for row in rows] == [3, 4, 6, 8, 9, 12, 12, 15, 16]


@pytest.mark.parametrize("kind", [JSONLogger, CSVLogger])
def test_a_log_torn_at_any_byte_goes_on_from_its_last_whole_row(kind, tmp_path):
    rows = [(step, {"loss": step / 8}) for step in range(1, 6)]
    kind(tmp_path / "whole").write(rows)
    whole = (tmp_path / "whole").read_bytes()
    kept = len(b"\n".join(whole.split(b"\n")[: 3 + (kind is CSVLogger)])) + 1
    for end in range(kept, len(whole) + 1):
        (tmp_path / "torn").write_bytes(whole[:end])
        logger = kind(tmp_path / "torn")
        logger.start(3)
        assert (tmp_path / "torn").read_bytes() == whole[:kept]
        logger.write(rows[3:])
        assert (tmp_path / "torn").read_bytes() == whole


def test_a_new_run_begins_its_log_anew(tmp_path):
    run(tmp_path / "log.jsonl", epochs=1)
    run(tmp_path / "log.jsonl", epochs=1)
    assert [row["step"] for row in read_json(tmp_path / "log.jsonl")] == [3, 4]


def test_a_log_holds_whole_lines_whenever_it_is_read(tmp_path):
    path = tmp_path / "log.jsonl"
    seen = []

    class Tail(Callback):
        def on_call(self, state, call):
            seen.append(len(read_json(path)))  # the logger is before this callback

    run(path, log_every=1, callbacks=[Tail()])
    assert seen[0] >= 1
    assert seen == sorted(seen)


def test_a_new_column_keeps_the_rows_before_it_and_quoted_names_come_back(tmp_path):
    log = CSVLogger(tmp_path / "log.csv")
    log.log(1, {"a": 0.1})
    log.log(2, {'b, "b"': 2, "a": float("nan")})
    log.log(3, {"a": float("-inf")})
    # Another process goes on.
    again = CSVLogger(tmp_path / "log.csv")
    again.start(3)
    again.log(4, {"c": 1e-300})
    assert read_csv(tmp_path / "log.csv") == [
        {"step": "1", "a": "0.1", 'b, "b"': "", "c": ""},
        {"step": "2", "a": "nan", 'b, "b"': "2", "c": ""},
        {"step": "3", "a": "-inf", 'b, "b"': "", "c": ""},
        {"step": "4", "a": "", 'b, "b"': "", "c": "1e-300"},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_json_has_no_nan(tmp_path):
    JSONLogger(tmp_path / "log").log(1, {"a": math.nan, "b": -math.inf, "c": 1})
    text = (tmp_path / "log").read_text()
    assert text == '{"step": 1, "a": null, "b": null, "c": 1}\n'


def test_tensorboard_shows_a_resumed_run_as_the_whole_one(tmp_path):
    whole, log = Memory(), TensorBoardLogger(tmp_path)
    run(whole, epochs=4)
    half = run(None, epochs=2).state
    run(log, epochs=3)
    run(log, epochs=4, state=half)
    wanted = [value for value in values_of(whole.rows) if value[1] != "seconds"]
    got = [value for value in read_events(tmp_path) if value[1] != "seconds"]
    assert got == wanted
    assert len(list(tmp_path.iterdir())) == 2  # though begun in the same second


def test_tensorboard_without_its_extra_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"eqx-mlp\[tensorboard\]"):
        TensorBoardLogger("folder")


@pytest.mark.parametrize(
    ("kind", "content", "line", "wanted"),
    [
        (JSONLogger, "import jax\n", 1, "it to begin with"),
        (JSONLogger, '{"lr": 0.1}', 1, "it to begin with"),
        (JSONLogger, "\udcff", 1, "it to begin with"),
        (JSONLogger, '{"step": 1}\n[1]\n', 2, "a JSON object with a step"),
        (JSONLogger, '{"step": 1}\n\udcff\n', 2, "a JSON object with a step"),
        (JSONLogger, '{"step": "1"}\n', 1, "a step that is an integer"),
        (CSVLogger, "x,y\n1,2\n", 1, "it to begin with"),
        (CSVLogger, "step,y\n1,2\nb,2\n", 3, "a row that begins with its step"),
    ],
)
def test_a_file_that_is_no_log_is_refused_and_left_alone(
    kind, content, line, wanted, tmp_path
):
    path = tmp_path / "train.py"
    before = content.encode(errors="surrogateescape")
    path.write_bytes(before)
    with pytest.raises(ValueError, match=rf"line {line}: expected {wanted}.*no log"):
        run(kind(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("logger", [3, print, logging.getLogger("x"), ["a", None, 3]])
def test_what_is_no_logger_is_refused(logger):
    with pytest.raises(ValueError, match="logger must be a path"):
        run(logger)


@pytest.mark.parametrize("log_every", [0, -1, 2.5, True])
def test_log_every_is_a_count(log_every):
    with pytest.raises(ValueError, match="log_every must be an integer >= 1"):
        run(None, log_every=log_every)


def test_a_logger_of_ones_own_that_has_a_start_is_told_the_step():
    class Starts(Memory):
        def start(self, step):
            self.rows = [row for row in self.rows if row[0] <= step]

    mine = Starts()
    half = run(mine, epochs=2).state
    run(mine, epochs=3, state=half)
    assert [step for step, _ in mine.rows] == [3, 4, 6, 8, 9, 12, 12]
