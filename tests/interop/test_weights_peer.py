"""Weights from PyTorch and Flax give the logits that those libraries give, and back."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, ResidualMLP
from eqx_mlp.interop import weights

X = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def its_own_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def agree(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


def test_pytorchs_weights_give_its_logits_and_back(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    def sequential(*between):
        return torch.nn.Sequential(
            torch.nn.Linear(6, 5), *between, torch.nn.Linear(5, 4), *between,
            torch.nn.Linear(4, 3),
        )  # fmt: skip

    x = torch.from_numpy(X)
    model = MLP(6, 3, (5, 4), key=jax.random.key(0))
    for net in (
        sequential(torch.nn.ReLU()),
        sequential(torch.nn.ReLU(), torch.nn.Dropout(0.5)).eval(),
    ):
        logits = net(x).detach()
        loaded = weights.from_torch(model, net.state_dict())
        agree(jax.vmap(loaded)(X), logits)

    blank = sequential(torch.nn.ReLU())
    blank.load_state_dict(weights.to_torch(loaded))
    agree(blank(x).detach(), logits)
    named = [f"{i}" for i in (0, 3, 6)]
    net.load_state_dict(weights.to_torch(model, modules=named))
    agree(net(x).detach(), jax.vmap(model)(X))

    # By a file that each of the two wrote.
    save_file = pytest.importorskip("safetensors.torch").save_file
    load_file = pytest.importorskip("safetensors.torch").load_file
    save_file(blank.state_dict(), tmp_path / "theirs.safetensors")
    arrays = weights.load_safetensors(tmp_path / "theirs.safetensors")
    agree(jax.vmap(weights.from_torch(model, arrays))(X), logits)
    weights.save_safetensors(tmp_path / "ours", weights.to_torch(loaded))
    blank.load_state_dict(load_file(tmp_path / "ours"))
    agree(blank(x).detach(), logits)

    # In place updates of PyTorch's do not reach our copies, nor ours theirs.
    for tensor in net.parameters():
        tensor.data.zero_()
    agree(jax.vmap(loaded)(X), logits)

    half = MLP(6, 3, (5, 4), dtype=jnp.bfloat16, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"0\.weight expected bfloat16.*got float32"):
        weights.from_torch(half, blank.state_dict())
    exact = weights.from_torch(half, blank.bfloat16().state_dict())
    back = weights.to_torch(exact)
    for name, tensor in blank.state_dict().items():
        assert torch.equal(back[name], tensor)


def test_a_pytorch_module_with_the_same_fields_needs_no_names():
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)
            self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
            self.blocks = torch.nn.Sequential(Block(), Block())
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x):
            return self.head(self.norm(self.blocks(self.embed(x))))

    net, model = Residual(), ResidualMLP(6, 3, 4, 2, key=jax.random.key(0))
    logits = net(torch.from_numpy(X)).detach()
    agree(jax.vmap(weights.from_torch(model, net.state_dict()))(X), logits)
    net.load_state_dict(weights.to_torch(model))
    agree(net(torch.from_numpy(X)).detach(), jax.vmap(model)(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flaxs_parameters_give_its_logits_and_back():
    nnx = pytest.importorskip("flax.nnx")
    linen = pytest.importorskip("flax.linen")
    relu = jax.nn.relu
    model = MLP(6, 3, (5, 4), key=jax.random.key(0))

    class Compact(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = relu(linen.Dense(5)(x))
            x = relu(linen.Dense(4)(x))
            return linen.Dense(3)(x)

    layers = [linen.Dense(5), relu, linen.Dense(4), relu, linen.Dense(3)]
    for net in (Compact(), linen.Sequential(layers)):
        variables = net.init(jax.random.key(1), X)
        agree(jax.vmap(weights.from_flax(model, variables))(X), net.apply(variables, X))
    agree(Compact().apply({"params": weights.to_flax(model)}, X), jax.vmap(model)(X))

    class Net(nnx.Module):
        def __init__(self, rngs):
            sizes = (6, 5, 4, 3)
            pairs = itertools.pairwise(sizes)
            self.layers = nnx.List([nnx.Linear(m, n, rngs=rngs) for m, n in pairs])
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            for layer in self.layers[:-1]:
                x = relu(layer(x))
            return self.layers[-1](x)

    rngs = nnx.Rngs(0)
    layers = [nnx.Linear(6, 5, rngs=rngs), relu, nnx.Linear(5, 4, rngs=rngs), relu]
    sequential = nnx.Sequential(*layers, nnx.Linear(4, 3, rngs=rngs))
    for net, numbers in ((Net(rngs), (0, 1, 2)), (sequential, (0, 2, 4))):
        loaded = weights.from_flax(model, nnx.state(net, nnx.Param))
        agree(jax.vmap(loaded)(X), net(X))
        names = [f"layers.{i}" for i in numbers]
        nnx.update(net, weights.to_flax(model, modules=names))
        agree(net(X), jax.vmap(model)(X))
    with pytest.raises(ValueError, match="dropout"):
        weights.from_flax(model, nnx.state(Net(rngs)))
