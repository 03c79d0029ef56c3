"""Weights by name: each array has its place, or an error names the one without."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, Ensemble, ResidualMLP
from eqx_mlp.interop import weights

rng = np.random.default_rng(0)
SIZES = (3, 5, 4, 2)
X = rng.normal(size=3).astype(np.float32)
W = [
    (rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=n).astype(np.float32))
    for m, n in itertools.pairwise(SIZES)
]


def model_of(dtype=None):
    return MLP(3, 2, (5, 4), dtype=dtype, key=jax.random.key(0))


def by_hand():
    x = X
    for weight, bias in W[:-1]:
        x = np.maximum(weight @ x + bias, 0)
    return W[-1][0] @ x + W[-1][1]


def state_dict(names=("0", "2", "4")):
    return {
        f"{name}.{field}": array
        for name, pair in zip(names, W, strict=True)
        for field, array in zip(("weight", "bias"), pair, strict=True)
    }


def linen(names=("Dense_0", "Dense_1", "Dense_2")):
    return {
        name: {"kernel": weight.T, "bias": bias}
        for name, (weight, bias) in zip(names, W, strict=True)
    }


def right(model):
    np.testing.assert_allclose(model(X), by_hand(), rtol=1e-5, atol=1e-6)


def same(a, b):
    assert eqx.tree_equal(a, b)


def test_a_state_dict_gives_the_logits_computed_by_hand():
    model = model_of()
    right(weights.from_torch(model, state_dict()))
    # A file's order is that of its own, and Sequential with dropout counts by threes.
    jumbled = dict(reversed(state_dict(("net.2", "net.8", "net.11")).items()))
    right(weights.from_torch(model, jumbled))
    named = dict(sorted(state_dict(("up", "down", "head")).items()))
    right(weights.from_torch(model, named, modules=("up", "down", "head")))
    right(
        weights.from_arrays(model, {"layers": [dict(weight=w, bias=b) for w, b in W]})
    )
    template = eqx.filter_eval_shape(MLP, 3, 2, (5, 4), key=jax.random.key(0))
    right(weights.from_torch(template, state_dict()))


def test_a_kernel_is_a_weights_transpose():
    model = model_of()
    right(weights.from_flax(model, linen()))
    right(weights.from_flax(model, {"params": {"MLP_0": linen()}}))
    right(weights.from_flax(model, {"layers": dict(enumerate(linen().values()))}))
    names = ("up", "down", "head")
    right(weights.from_flax(model, linen(names), modules=names))
    jax.tree.map(
        np.testing.assert_array_equal,
        weights.to_flax(weights.from_torch(model, state_dict())),
        linen(),
    )


def test_equinoxs_own_mlp_goes_in_and_out():
    theirs = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(1))
    model = weights.from_arrays(MLP(3, 2, (4, 4), key=jax.random.key(0)), theirs)
    np.testing.assert_allclose(model(X), theirs(X), rtol=1e-6)
    blank = eqx.nn.MLP(3, 2, 4, 2, key=jax.random.key(2))
    same(weights.from_arrays(blank, model), theirs)


@pytest.mark.parametrize(
    "model",
    [
        ResidualMLP(3, 2, 4, 2, hidden_size=5, key=jax.random.key(2)),
        MLP(3, 2, (), use_bias=False, dtype=jnp.bfloat16, key=jax.random.key(3)),
        Ensemble(
            [
                MLP(3, 2, (4,), dropout_rate=rate, key=jax.random.key(4))
                for rate in (0.1, 0.2)
            ]
        ),
        {"a": np.arange(3.0), "b": [jnp.arange(2), jnp.array(1.5)]},
    ],
    ids=lambda m: type(m).__name__,
)
def test_every_model_comes_back_from_what_it_gave(model, tmp_path):
    zeros = {name: 0 * x for name, x in weights.to_arrays(model).items()}
    blank = weights.from_arrays(model, zeros)
    assert not eqx.tree_equal(blank, model)
    same(weights.from_arrays(blank, weights.to_arrays(model)), model)
    same(weights.from_flax(blank, weights.to_flax(model)), model)
    if isinstance(model, ResidualMLP):
        modules = [f"m.{i}" for i in range(9)]
        renamed = weights.to_flax(model, modules=modules)
        same(weights.from_flax(blank, renamed, modules=modules), model)
    path = tmp_path / "new" / "model.safetensors"
    weights.save_safetensors(path, model)
    same(weights.from_arrays(blank, weights.load_safetensors(path)), model)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_entry_that_does_not_fit_is_named():
    model = model_of()
    whole = state_dict()

    def message(entries, match, **options):
        with pytest.raises(ValueError, match=match):
            weights.from_torch(model, entries, **options)

    message(
        {k: v for k, v in whole.items() if k != "2.bias"},
        r"state_dict .*at 2\.bias expected float32\[4\], got nothing",
    )
    message(
        {k: v for k, v in whole.items() if not k.startswith("4.")},
        r"at layers\.2\.weight expected float32\[2, 4\], got nothing",
    )
    message(
        whole | {"6.weight": W[0][0]},
        r"at 6\.weight expected nothing, got float32\[5, 3\]",
    )
    message(whole | {"2.running_mean": W[0][1]}, r"at 2\.running_mean expected nothing")
    message(
        whole | {"2.weight": W[1][0].T},
        r"at 2\.weight expected float32\[4, 5\], got float32\[5, 4\]",
    )
    message(
        whole | {"0.bias": W[0][1].astype(np.float64)},
        r"at 0\.bias expected float32\[5\], got float64\[5\]\. .*cast",
    )
    message(
        state_dict(("up", "down", "head")),
        r"at layers\.0\.weight .*in order, layers\.0, layers\.1, .*modules=",
    )
    message({}, r"at layers\.0\.weight expected .*; and at 3 more places")
    for modules in (("up", "down"), ("up", "up", "up"), "abc"):
        message(whole, "modules must give 3 different names", modules=modules)
    with pytest.raises(ValueError, match="modules must give 3 different names"):
        weights.to_flax(model, modules=("a",))
    with pytest.raises(TypeError, match=r"takes arrays by name, .* got a list"):
        weights.from_torch(model, list(whole.values()))
    turned = linen()
    turned["Dense_1"]["kernel"] = W[1][0]
    with pytest.raises(
        ValueError, match=r"at Dense_1\.kernel expected float32\[5, 4\], got .*\[4, 5\]"
    ):
        weights.from_flax(model, turned)


def test_a_layer_left_out_is_missed_where_its_neighbours_would_fit():
    square = MLP(4, 4, (4, 4), key=jax.random.key(0))
    arrays = weights.to_arrays(square)
    for kept in (("0", "2"), ("1", "2"), ("2", "5")):
        entries = {
            f"layers.{i}.{field}": arrays[f"layers.0.{field}"]
            for i in kept
            for field in ("weight", "bias")
        }
        with pytest.raises(ValueError, match=r"layers\.\d\.weight expected .*nothing"):
            weights.from_torch(square, entries)


def test_weights_are_copied_and_the_rest_of_the_model_stays():
    model = eqx.nn.inference_mode(
        MLP(3, 2, (5, 4), dropout_rate=0.5, key=jax.random.key(0))
    )
    given = {name: x.copy() for name, x in state_dict().items()}
    loaded = weights.from_torch(model, given)
    for x in given.values():
        x[:] = 0
    right(loaded)
    assert loaded.dropout.inference
    device = jax.devices()[1]
    there = jax.tree.map(
        lambda x: jax.device_put(x, device) if eqx.is_array(x) else x, model
    )
    assert weights.from_torch(there, given).layers[0].weight.devices() == {device}


def test_a_safetensors_file_keeps_every_dtype_and_layout(tmp_path):
    path = tmp_path / "w.safetensors"
    arrays = {
        "turned": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.array(1.5, np.float16),
        "empty": np.zeros((0, 3), np.int8),
        "half": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
        "small": np.asarray(jnp.arange(3, dtype=jnp.float8_e4m3fn)),
        "flags": np.array([True, False]),
    }
    weights.save_safetensors(path, arrays)
    loaded = weights.load_safetensors(path)
    assert loaded.keys() == arrays.keys()
    for name, x in arrays.items():
        assert (loaded[name].dtype, loaded[name].shape) == (x.dtype, x.shape)
        assert loaded[name].tobytes() == np.ascontiguousarray(x).tobytes()


def test_a_malformed_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(FileNotFoundError):
        weights.load_safetensors(path)
    weights.save_safetensors(path, {"w": np.ones(3, np.float32)})
    whole = path.read_bytes()
    for bad in (b"", b"abc", whole[:-3], whole + b"x", b"\xff" * 99, whole[8:]):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="damaged, or no safetensors file"):
            weights.load_safetensors(path)
    with pytest.raises(ValueError, match="there is no array in"):
        weights.save_safetensors(path, {})
    with pytest.raises(TypeError, match="cannot hold w, of dtype complex128"):
        weights.save_safetensors(path, {"w": np.ones(3, np.complex128)})
    path.write_bytes(whole.replace(b'"F32"', b'"U99"'))
    with pytest.raises(ValueError, match=r"w\.safetensors"):
        weights.load_safetensors(path)
