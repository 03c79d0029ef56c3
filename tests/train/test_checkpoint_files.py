"""What is in a checkpoint's folder, who may write there, and what is refused."""

import json
import os
import shutil
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Callback,
    Checkpoints,
    ResidualMLP,
    fit,
    init_state,
    load,
    losses,
    save,
)
from eqx_mlp.train import _content, _lock, _store

KEY = jax.random.key(0)
ADAM = optax.adam(1e-2)
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
Y = np.arange(8, dtype=np.int32) % 4


def square(depth=3, width=4, **changed):
    # Equal widths: a shallower network fits into the first layers of a deeper one.
    return MLP(4, 4, (width,) * depth, key=KEY, **changed)


def state_of(model, optimizer=ADAM):
    return init_state(model, optimizer, key=jax.random.key(1))


def run(folder, **changed):
    options = {
        "loss": losses.cross_entropy,
        "optimizer": ADAM,
        "key": jax.random.key(1),
        "epochs": 1,
        "batch_size": 4,
        "progress": False,
    } | changed
    model = options.pop("model", square())
    data = options.pop("data", (X, Y))
    return fit(model, data, checkpoint=Checkpoints(folder), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(folder)
    return folder


def require_equal(a, b):
    a, b = (jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (a, b))
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


class TestLoading:
    @pytest.mark.parametrize(
        "model",
        [
            square(activation=jnp.sin, dropout_rate=0.25, dtype=jnp.bfloat16),
            eqx.nn.inference_mode(square(depth=0, use_bias=False, dropout_rate=0.5)),
            ResidualMLP(
                4, 3, 6, 2, hidden_size=5, activation=jax.nn.gelu, dtype="f2", key=KEY
            ),
        ],
        ids=["MLP", "linear, in inference", "ResidualMLP"],
    )
    def test_a_model_of_the_library_needs_nothing_but_the_folder(self, model, tmp_path):
        save(tmp_path, model)
        got = load(tmp_path)
        assert jax.tree.structure(got) == jax.tree.structure(model)
        require_equal(got, model)
        assert got.activation is model.activation
        assert (got.dropout.p, got.dropout.inference) == (
            model.dropout.p,
            model.dropout.inference,
        )

    def test_a_run_gives_its_model_and_its_state(self, folder):
        result = run(folder)
        require_equal(load(folder), result.model)
        like = state_of(square())
        assert load(folder, like=like).step == 2
        require_equal(load(folder, like=like).opt_state, result.state.opt_state)
        shapes = eqx.filter_eval_shape(square)
        require_equal(load(folder, like=shapes), result.model)

    @pytest.mark.parametrize(
        "model",
        [
            {"w": jnp.ones(2), "b": jnp.zeros(())},
            jnp.ones((2, 2)),
            square(activation=lambda x: x * 2),
            eqx.tree_at(lambda m: m.layers[1], square(), eqx.nn.Linear(4, 4, key=KEY)),
            eqx.tree_at(lambda m: m.layers[0].bias, square(), None),
        ],
        ids=["dict", "array", "activation", "layer", "bias"],
    )
    def test_another_model_needs_one_like_it(self, model, tmp_path):
        save(tmp_path, model)
        if jax.tree.structure(model) != jax.tree.structure(square()):
            with pytest.raises(ValueError, match=r"load\(folder, like=model\)"):
                load(tmp_path)
        require_equal(load(tmp_path, like=model), model)

    @pytest.mark.parametrize("devices", [(1, 2), (2, 1)])
    def test_it_loads_on_another_number_of_devices(self, devices, tmp_path):
        def sharding(n):
            mesh = jax.make_mesh((n,), ("x",), devices=jax.devices()[:n])
            return jax.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

        written, read = (sharding(n) for n in devices)
        model = {"w": jnp.arange(8.0), "keys": jax.random.split(KEY, 4)}
        save(tmp_path, jax.device_put(model, written))
        got = load(tmp_path, like=jax.device_put(model, read))
        assert all(x.sharding == read for x in got.values())
        np.testing.assert_array_equal(got["w"], np.arange(8.0))
        np.testing.assert_array_equal(
            *(jax.random.key_data(x["keys"]) for x in (got, model))
        )

    @pytest.mark.parametrize("dtype", ["f2", "f4", "c8", "u1", "i4", "?", "i1", "u2"])
    def test_every_dtype_and_shape_comes_back_as_it_was(self, dtype, tmp_path):
        leaves = [np.ones(s, dtype) for s in [(), (1, 1), (0, 3), (2, 0), (3, 2)]]
        model = {"w": list(map(jnp.asarray, leaves)), "stored": leaves}
        save(tmp_path, model)
        got = load(tmp_path, like=model)
        assert all(isinstance(x, np.ndarray) for x in got["stored"])
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(model), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            np.testing.assert_array_equal(x, y)


class TestAnotherModelIsRefused:
    def refused(self, match, folder, like):
        with pytest.raises(ValueError, match=match):
            load(folder, like=like)

    def test_a_wider_one(self, folder):
        self.refused(
            r"at model\.layers\[0\]\.weight expected float32\[6, 4\], got "
            r"float32\[4, 4\]",
            folder,
            square(width=6),
        )

    def test_a_shallower_one_with_the_same_widths(self, folder):
        self.refused(
            r"at model\.layers\[3\]\.weight expected nothing, got float32\[4, 4\]",
            folder,
            square(depth=2),
        )

    def test_a_deeper_one_with_the_same_widths(self, folder):
        self.refused(
            r"at model\.layers\[4\]\.weight expected float32\[4, 4\], got nothing",
            folder,
            square(depth=4),
        )

    def test_another_dtype(self, folder):
        match = r"expected bfloat16\[4, 4\], got float32\[4, 4\].*and at \d more places"
        self.refused(match, folder, square(dtype=jnp.bfloat16))

    def test_another_activation(self, folder):
        match = r"MLP\(.*activation=relu.* to be loaded into MLP\(.*activation=tanh"
        self.refused(match, folder, square(activation=jax.nn.tanh))

    def test_another_dropout_rate(self, folder):
        like = square(dropout_rate=0.5)
        self.refused(r"dropout\.p expected 0\.5, got 0\.0", folder, like)

    def test_another_optimizer(self, folder):
        self.refused(
            r"at opt_state\[0\].trace.*expected float32\[4, 4\], got nothing",
            folder,
            state_of(square(), optax.sgd(0.1, momentum=0.9)),
        )

    def test_another_kind_of_key(self, folder):
        key = jax.random.key(1, impl="rbg")
        self.refused(
            r"at key expected a rbg key of uint32\[4\], got a threefry2x32 key",
            folder,
            init_state(square(), ADAM, key=key),
        )

    def test_a_state_from_a_model_alone(self, tmp_path):
        save(tmp_path, square())
        self.refused("got nothing", tmp_path, state_of(square()))

    def test_float64_where_jax_would_make_it_float32(self, tmp_path):
        save(tmp_path, {"w": np.ones(2)})
        like = {"w": jax.ShapeDtypeStruct((2,), np.float64)}
        self.refused("set jax_enable_x64", tmp_path, like)


def files_of(folder):
    (path,) = _store.checkpoints_in(folder).values()
    return path, sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class TestDamageIsRefused:
    @pytest.fixture
    def copy(self, folder, tmp_path):
        shutil.copytree(folder, tmp_path / "copy")
        return tmp_path / "copy"

    def refused(self, folder, name):
        for read in (load, run):
            with pytest.raises(ValueError, match=f"is damaged: {name}.*Nothing was"):
                read(folder)

    def test_a_flipped_bit_in_any_file(self, copy):
        path, names = files_of(copy)
        rng = np.random.default_rng(0)
        assert len(names) > 3
        for name in names:
            whole = (path / name).read_bytes()
            manifest = name.name == "manifest.json"
            # Between the manifest's words there is white space that says nothing.
            said = [i for i, c in enumerate(whole) if not manifest or c not in b" \n"]
            for at in (said[0], said[-1], *rng.choice(said, 30 if manifest else 5)):
                flip(path / name, at)
                match = "is damaged|format version" if manifest else "is damaged"
                with pytest.raises(ValueError, match=match):
                    load(copy)
                (path / name).write_bytes(whole)
        load(copy)

    def test_a_file_that_is_gone_or_truncated(self, copy):
        path, names = files_of(copy)
        for name in names:
            whole = (path / name).read_bytes()
            (path / name).write_bytes(whole[:-1] if len(whole) else b"?")
            if name.name != "manifest.json":  # it ends with a line break
                self.refused(copy, name)
            (path / name).write_bytes(whole[: len(whole) // 2] if whole else b"?")
            self.refused(copy, name)
            (path / name).unlink()
            self.refused(copy, name)
            (path / name).write_bytes(whole)
        shutil.rmtree(path / "arrays")
        self.refused(copy, "arrays/")

    def test_another_format_version(self, copy):
        path, _ = files_of(copy)
        content = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(content | {"format": 0}))
        for read in (load, run):
            with pytest.raises(ValueError, match="format version 0, expected 2"):
                read(copy)

    def test_a_manifest_that_names_another_class(self, copy):
        path, _ = files_of(copy)
        content = json.loads((path / "manifest.json").read_text())
        content["constructor"]["class"] = "os.system"
        del content["sha256"]
        content["sha256"] = _store._sha256(_store._canonical(content))
        (path / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="expected one of MLP, ResidualMLP"):
            load(copy)

    def test_what_a_killed_process_left_is_cleaned_up(self, copy):
        for name in (".writing", ".deleting-7"):
            (copy / name / "arrays").mkdir(parents=True)
        run(copy, epochs=2)
        assert {p.name for p in copy.iterdir()} == {
            ".lock",
            "000000000002",
            "000000000004",
        }


class TestAnotherRunIsRefused:
    @pytest.mark.parametrize(
        ("match", "changed"),
        [
            ("batch_size 4, and this call has 2", {"batch_size": 2}),
            (r"data \['float32\[8, 4\]', 'int32\[8\]'\]", {"data": (X[1:], Y[1:])}),
            ("another random key", {"key": jax.random.key(7)}),
            ("history", {"validation": (X, Y)}),
            ("layers.* expected float32", {"model": square(width=5)}),
            ("opt_state.* expected nothing", {"optimizer": optax.sgd(1e-2)}),
            ("has done 2 updates, and the state given 5", {}),
        ],
    )
    def test_by_name(self, match, changed, folder):
        if not changed:
            state = eqx.tree_at(lambda s: s.step, state_of(square()), jnp.int32(5))
            changed = {"model": state, "key": None}
        with pytest.raises(ValueError, match=match):
            run(folder, **changed)

    def test_with_another_callback_that_has_a_state(self, folder):
        class Stateful(Callback):
            def save_state(self):
                return {}

        with pytest.raises(ValueError, match=r"has callbacks \[\], and this call has"):
            run(folder, callbacks=[Stateful()])
        run(folder, callbacks=[Callback()])

    def test_what_save_wrote_is_no_run(self, tmp_path):
        save(tmp_path, state_of(square()))
        with pytest.raises(ValueError, match="written by save, not by fit"):
            run(tmp_path)


class TestTheFolder:
    @pytest.mark.parametrize(
        ("options", "kept", "best"),
        [
            ({"keep": 1}, {5}, None),
            ({"keep": 2, "best": "val_m"}, {2, 4, 5}, 2),
            ({"keep": 1, "best": "val_m", "mode": "max"}, {4, 5}, 4),
            ({"keep": 1, "every": 99, "best": "val_m"}, {2, 5}, 2),
            ({"keep": 9, "every": 3}, {3, 5}, None),
        ],
    )
    def test_the_latest_and_the_best_stay(self, options, kept, best, tmp_path):
        # An epoch is one update, which adds 1 to the only parameter.
        values = jnp.array([9, 3, 1, 2, 4, jnp.nan])
        fit(
            jnp.array(0.0),
            (jnp.ones(1),),
            loss=lambda w, x: -w * x,
            optimizer=optax.sgd(1.0),
            key=KEY,
            epochs=5,
            batch_size=1,
            validation=(jnp.ones(1),),
            metrics={"m": lambda w, x: values[w.astype(jnp.int32)]},
            checkpoint=Checkpoints(tmp_path, **options),
            progress=False,
        )
        assert set(_store.checkpoints_in(tmp_path)) == kept
        if best:
            assert load(tmp_path, which="best", like=jnp.array(0.0)) == best
        else:
            with pytest.raises(ValueError, match="known to be the best"):
                load(tmp_path, which="best", like=jnp.array(0.0))

    def test_a_second_writer_is_told_so(self, tmp_path):
        match = f"being written by process {os.getpid()} on"
        with _lock.locked(tmp_path):
            for write in (lambda: run(tmp_path), lambda: save(tmp_path, square())):
                with pytest.raises(RuntimeError, match=match):
                    write()
        assert not _store.checkpoints_in(tmp_path)
        save(tmp_path, square())

    def test_a_write_that_fails_is_raised(self, tmp_path, monkeypatch):
        def full(*_):
            raise OSError("no space left")

        monkeypatch.setattr(_store, "write", full)
        with pytest.raises(OSError, match="no space left"):
            run(tmp_path)

    def test_what_is_written_is_what_was_there_then(self, tmp_path, monkeypatch):
        class Count(Callback):
            def on_start(self, state, history):
                self.epochs = np.zeros(1)

            def on_epoch(self, state, history):
                self.epochs += 1  # in place, while the thread still writes

            def save_state(self):
                return self.epochs

        original = _store.write

        def slow(*arguments):
            time.sleep(0.3)
            original(*arguments)

        monkeypatch.setattr(_store, "write", slow)
        run(tmp_path, epochs=2, callbacks=[Count()])
        for step, path in _store.checkpoints_in(tmp_path).items():
            _, data = _content.Checkpoint(path).load(state_of(square()))
            assert data["callbacks"][0] == step / 2

    def test_nothing_is_overwritten(self, tmp_path):
        save(tmp_path, square())
        with pytest.raises(ValueError, match="already holds a checkpoint of step 0"):
            save(tmp_path, square())

    def test_nothing_there(self, tmp_path, folder):
        for missing in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(FileNotFoundError, match="no checkpoint in"):
                load(missing)
        with pytest.raises(FileNotFoundError, match=r"of step 7 .* holds steps 2"):
            load(folder, which=7)


class TestBadOptions:
    @pytest.mark.parametrize(
        ("match", "options"),
        [
            ("keep must be an integer >= 1, got 0", {"keep": 0}),
            ("every must be an integer >= 1, got 0", {"every": 0}),
            ("every must be an integer >= 1, got 1.5", {"every": 1.5}),
            ("mode must be 'min' or 'max', got 'least'", {"mode": "least"}),
            ("folder must be a path, got 3", {"folder": 3}),
        ],
    )
    def test_of_checkpoints(self, match, options):
        with pytest.raises(ValueError, match=match):
            Checkpoints(**{"folder": "a"} | options)

    def test_of_load(self, folder):
        with pytest.raises(ValueError, match="which must be 'last', 'best' or"):
            load(folder, which="first")
        with pytest.raises(ValueError, match="folder must be a path, got 3"):
            load(3)

    def test_of_fit(self, tmp_path):
        options = {"loss": losses.cross_entropy, "optimizer": ADAM, "key": KEY}
        options |= {"epochs": 1, "batch_size": 4, "progress": False}
        with pytest.raises(ValueError, match=r"must be eqx_mlp.Checkpoints\(folder"):
            fit(square(), (X, Y), checkpoint="runs/a", **options)
        with pytest.raises(ValueError, match=r"none of the names.*: loss, seconds"):
            fit(
                square(),
                (X, Y),
                checkpoint=Checkpoints(tmp_path, best="val_loss"),
                **options,
            )

    def test_a_callbacks_state_that_is_not_plain(self, tmp_path):
        class Stateful(Callback):
            def save_state(self):
                return {"model": [square()]}

        with pytest.raises(TypeError, match=r"\['callbacks'\]\[0\]\['model'\]\[0\], a"):
            run(tmp_path, callbacks=[Stateful()])

    def test_without_orbax(self, monkeypatch, folder):
        monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
        for use in (lambda: run(folder), lambda: load(folder)):
            with pytest.raises(ImportError, match=r"eqx-mlp\[checkpoint\]"):
                use()
