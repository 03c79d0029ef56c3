"""Models: how they are drawn, what they compute, what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, ResidualMLP, clipped_grad, losses, mean_grad, nn

KEY = jax.random.key(0)


def test_an_mlp_is_matrix_products_with_an_activation_between():
    model = MLP(3, 2, (5, 4), activation=jnp.tanh, key=KEY)
    x = np.array([0.5, -1.0, 2.0], np.float32)
    h = x
    for layer in model.layers[:-1]:
        h = np.tanh(np.asarray(layer.weight) @ h + np.asarray(layer.bias))
    wanted = np.asarray(model.layers[-1].weight) @ h
    np.testing.assert_allclose(model(jnp.asarray(x)), wanted, rtol=1e-5)
    np.testing.assert_allclose(model(x), wanted, rtol=1e-5)


def test_each_hidden_layer_has_its_own_width_and_biases_start_at_zero():
    model = MLP(784, 10, (256, 128), key=KEY)
    shapes = [layer.weight.shape for layer in model.layers]
    assert shapes == [(256, 784), (128, 256), (10, 128)]
    assert all(np.all(np.asarray(layer.bias) == 0) for layer in model.layers)
    assert MLP(4, 2, (), key=KEY).layers[0].weight.shape == (2, 4)
    assert MLP(4, 2, [3], use_bias=False, key=KEY).layers[0].bias is None


def test_he_weights_have_mean_0_and_variance_2_over_fan_in():
    weight = np.asarray(MLP(400, 10, (1000,), key=KEY).layers[0].weight, np.float64)
    n = weight.size
    # Standard errors of the mean and of the variance of n normal draws.
    assert abs(weight.mean()) < 4 * np.sqrt(2 / 400 / n)
    assert abs(weight.var() / (2 / 400) - 1) < 4 * np.sqrt(2 / n)
    # Normal, not truncated: some of 400,000 draws lie beyond four deviations.
    assert np.abs(weight).max() > 4 * np.sqrt(2 / 400)


def test_glorot_weights_are_uniform_within_the_papers_bound():
    weight = nn.glorot_uniform(KEY, (300, 500), jnp.float32)
    bound = np.sqrt(6 / 800)
    assert 0.999 * bound < np.abs(weight).max() <= bound
    assert float(jnp.var(weight)) == pytest.approx(bound**2 / 3, rel=0.02)


def test_layers_differ_keys_decide_and_the_same_key_draws_the_same():
    model = MLP(8, 8, (8,), key=KEY)
    assert np.any(model.layers[0].weight != model.layers[1].weight)
    again = MLP(8, 8, (8,), key=KEY)
    np.testing.assert_array_equal(model.layers[0].weight, again.layers[0].weight)
    other = MLP(8, 8, (8,), key=jax.random.key(1))
    assert np.any(model.layers[0].weight != other.layers[0].weight)
    legacy = MLP(8, 8, (8,), key=jax.random.PRNGKey(0))
    np.testing.assert_array_equal(model.layers[0].weight, legacy.layers[0].weight)


@pytest.mark.parametrize("kind", [MLP, ResidualMLP])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_parameters_and_outputs_are_of_the_dtype_asked_for(kind, dtype):
    sizes = (3, 2, (4,)) if kind is MLP else (3, 2, 4, 2)
    model = kind(*sizes, dtype=dtype, key=KEY)
    arrays = jax.tree.leaves(eqx.filter(model, eqx.is_array))
    assert {x.dtype for x in arrays} == {jnp.dtype(dtype)}
    assert model(jnp.ones(3, dtype)).dtype == dtype


@pytest.mark.parametrize(
    "model",
    [
        MLP(4, 64, (1000,), dropout_rate=0.5, key=KEY),
        ResidualMLP(4, 64, 100, 2, dropout_rate=0.5, key=KEY),
    ],
    ids=["MLP", "ResidualMLP"],
)
def test_dropout_draws_from_the_key_and_inference_needs_none(model):
    x = jnp.ones(4)
    a, b = (model(x, key=jax.random.key(i)) for i in (1, 2))
    assert np.any(a != b)
    np.testing.assert_array_equal(a, model(x, key=jax.random.key(1)))
    off = model(x, inference=True)
    np.testing.assert_array_equal(off, eqx.nn.inference_mode(model)(x))
    # Inverted dropout keeps the mean: many masked outputs average to the unmasked one.
    keys = jax.random.split(jax.random.key(3), 4000)
    if isinstance(model, MLP):
        masked = jax.vmap(lambda k: model(x, key=k))(keys)
        error = masked.std(0) / np.sqrt(len(keys))
        assert np.all(np.abs(masked.mean(0) - off) < 5 * error)
    with pytest.raises(ValueError, match=r"needs a key: pass key=.* inference=True"):
        model(x)
    with pytest.raises(ValueError, match="needs a key"):
        eqx.nn.inference_mode(model)(x, inference=False)


def test_dropout_masks_follow_each_hidden_activation():
    model = MLP(3, 2, (64,), dropout_rate=0.25, key=KEY)
    x, key = jnp.ones(3), jax.random.key(4)
    hidden = jax.nn.relu(model.layers[0](x))
    kept = jax.random.bernoulli(jax.random.split(key, 1)[0], 0.75, (64,))
    wanted = model.layers[1](jnp.where(kept, hidden / 0.75, 0))
    np.testing.assert_allclose(model(x, key=key), wanted, rtol=1e-5)


def test_a_residual_mlp_is_its_formula_and_an_identity_where_blocks_are_zero():
    model = ResidualMLP(3, 2, width=4, depth=2, hidden_size=6, key=KEY)

    def norm(h):
        h = np.asarray(h)
        return (h - h.mean()) / np.sqrt(h.var() + 1e-5)

    x = jnp.array([0.5, -1.0, 2.0])
    h = model.embed(x)
    for block in model.blocks:
        assert block.up.weight.shape == (6, 4)
        h = h + block.down(jax.nn.relu(block.up(jnp.asarray(norm(h)))))
    np.testing.assert_allclose(model(x), model.head(jnp.asarray(norm(h))), rtol=1e-4)
    silent = eqx.tree_at(
        lambda m: [b.down.weight for b in m.blocks],
        model,
        replace_fn=jnp.zeros_like,
    )
    wanted = model.head(jnp.asarray(norm(model.embed(x))))
    np.testing.assert_allclose(silent(x), wanted, rtol=1e-4)


def clipped(loss):
    return clipped_grad(loss, l2_clip_norm=0.5)


@pytest.mark.parametrize(("gradient", "depth"), [(mean_grad, 8), (clipped, 2)])
def test_rematerialised_blocks_give_the_same_gradient_for_less_memory(gradient, depth):
    def run(remat):
        model = ResidualMLP(
            8, 3, width=16, depth=depth, dropout_rate=0.5, remat=remat, key=KEY
        )
        x, y = jnp.ones((64, 8)), jnp.arange(64) % 3
        f = eqx.filter_jit(gradient(losses.cross_entropy))
        lowered = f.lower(model, x, y, key=jax.random.key(1))
        bytes_ = lowered.compile().compiled.memory_analysis().temp_size_in_bytes
        return f(model, x, y, key=jax.random.key(1))[0], bytes_

    (plain, whole), (again, less) = run(False), run(True)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    if gradient is mean_grad:
        # A block keeps its norm, up, activation and mask; a rematerialised one its x.
        assert less < whole / 2


def test_a_rematerialised_model_is_the_same_model_in_inference():
    plain, remat = (
        ResidualMLP(3, 2, 4, 2, dropout_rate=0.5, remat=remat, key=KEY)
        for remat in (False, True)
    )
    x = jnp.ones(3)
    np.testing.assert_array_equal(plain(x, inference=True), remat(x, inference=True))
    assert nn.summary(plain) == nn.summary(remat)


def test_blocks_of_unlike_shapes_cannot_be_rematerialised():
    model = ResidualMLP(3, 2, 4, 2, remat=True, key=KEY)
    other = ResidualMLP(3, 2, 4, 1, hidden_size=5, key=KEY)
    model = eqx.tree_at(lambda m: m.blocks[1], model, other.blocks[0])
    with pytest.raises(ValueError, match="remat=True runs the blocks in one loop"):
        model(jnp.ones(3))


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (jnp.ones((28, 28)), r"shape \(784,\), got shape \(28, 28\): flatten it first"),
        (jnp.ones((32, 784)), r"got shape \(32, 784\): for a batch use jax\.vmap"),
        (jnp.ones(7), r"got shape \(7,\): the model was built with in_size=784"),
        (jnp.ones(784, jnp.uint8), "takes floating-point features, got uint8"),
        ([1.0] * 784, "takes an array of shape .* got a list"),
    ],
)
@pytest.mark.parametrize("kind", [MLP, ResidualMLP])
def test_what_is_not_one_example_is_a_value_error(kind, x, match):
    sizes = (784, 2, ()) if kind is MLP else (784, 2, 4, 1)
    with pytest.raises(ValueError, match=match):
        kind(*sizes, key=KEY)(x)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((0, 2, ()), {}, "in_size must be an integer >= 1, got 0"),
        ((3, -1, ()), {}, "out_size must be an integer >= 1"),
        ((3, 2, 4), {}, r"width of each hidden layer, such as \(256, 128\), got 4"),
        ((3, 2, (4, 0)), {}, r"hidden_sizes\[1\] must be an integer >= 1, got 0"),
        ((3, 2, (4,)), {"dropout_rate": 1.0}, r"must be in \[0, 1\), got 1.0"),
        ((3, 2, (4,)), {"dropout_rate": -0.1}, r"must be in \[0, 1\)"),
        ((3, 2, (4,)), {"dtype": jnp.int32}, "floating dtype"),
        ((3, 2, (4,)), {"init": lambda k, s, d: jnp.ones(3)}, "init must return"),
    ],
)
def test_bad_sizes_and_options_are_value_errors(arguments, options, match):
    with pytest.raises(ValueError, match=match):
        MLP(*arguments, key=KEY, **options)


@pytest.mark.parametrize("key", [None, 0, "seed", jnp.ones(3)])
def test_a_missing_or_wrong_key_is_an_error_that_makes_one(key):
    with pytest.raises(ValueError, match=r"jax\.random\.key"):
        MLP(3, 2, (4,), key=key)


def test_no_key_at_all_is_the_same_error():
    with pytest.raises(ValueError, match=r"MLP needs a random key and got none"):
        MLP(3, 2, (4,))
    with pytest.raises(ValueError, match=r"ResidualMLP needs a random key"):
        ResidualMLP(3, 2, 4, 1)


def test_the_summary_counts_what_can_be_counted_by_hand():
    text = nn.summary(MLP(784, 10, (256, 128), key=KEY))
    rows = [line.split() for line in text.splitlines()]
    # 784*256+256 + 256*128+128 + 128*10+10, four bytes each, two FLOPs a weight.
    assert rows[-1] == ["total", "235,146", "940,584", "469,898"]
    assert rows[1][:2] == ["layers[0]", "Linear"]
    assert rows[1][-3:] == ["200,960", "803,840", "401,664"]
    # 18 x 18 outputs for each of 3 channels from 2 x 3 x 3 inputs, and a bias each.
    conv = eqx.nn.Conv2d(2, 3, 3, key=KEY)
    total = nn.summary(conv, jnp.ones((2, 20, 20))).splitlines()[-1].split()
    assert total == ["total", "57", "228", f"{2 * 18 * 18 * 3 * 18 + 18 * 18 * 3:,}"]


def test_the_summary_sees_into_jit_and_scan_and_skips_what_it_cannot_trace():
    class Deep(eqx.Module):
        weights: jax.Array

        def __call__(self, x):
            return jax.jit(
                lambda x: jax.lax.scan(lambda h, w: (w @ h, None), x, self.weights)[0]
            )(x)

    total = nn.summary(Deep(jnp.ones((5, 4, 4))), jnp.ones(4)).splitlines()[-1]
    assert total.split()[-1] == str(5 * 2 * 4 * 4)
    plain = nn.summary({"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}).splitlines()[-1]
    assert plain.split() == ["total", "9", "36", "-"]
