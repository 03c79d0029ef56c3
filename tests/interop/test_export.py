"""An exported program predicts as `predict` does, where there is nothing but jax."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, data, predict
from eqx_mlp.interop.export import export_predict, save_exported

ONLY_JAX = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("eqx_mlp", "equinox", "optax", "jaxtyping"):
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, Forbidden())
import numpy as np
from jax import export

exported = export.deserialize(bytearray(open("mlp.stablehlo", "rb").read()))
images = np.load("images.npy")
out = {str(n): np.asarray(exported.call(images[:n])) for n in (1, 7, 1000)}
np.savez("out.npz", **out)
print(exported.platforms, exported.in_avals)
"""


def test_the_program_predicts_the_same_in_a_process_that_has_only_jax(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (1000, 2, 3), np.uint8)
    model = MLP(6, 3, (5,), dropout_rate=0.5, key=jax.random.key(0))
    image = jax.ShapeDtypeStruct((2, 3), jnp.uint8)
    exported = export_predict(
        model, image, transform=data.image_to_vector, platforms=["cpu", "cuda", "tpu"]
    )
    save_exported(tmp_path / "mlp.stablehlo", exported)
    np.save(tmp_path / "images.npy", images)
    ran = subprocess.run(
        [sys.executable, "-c", ONLY_JAX],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert "'cpu', 'cuda', 'tpu'" in ran.stdout
    assert "uint8[batch,2,3]" in ran.stdout
    want = predict(model, images, transform=data.image_to_vector)
    with np.load(tmp_path / "out.npz") as out:
        assert {*out} == {"1", "7", "1000"}
        for n in out:
            np.testing.assert_allclose(out[n], want[: int(n)], rtol=1e-6, atol=1e-6)


def test_what_cannot_be_exported_is_refused():
    model = MLP(4, 2, (), key=jax.random.key(0))
    for x in (None, "abc", 4, [1.0, 2.0]):
        with pytest.raises(ValueError, match="x must be one example, without a batch"):
            export_predict(model, x)
    with pytest.raises(ValueError, match=r"MLP takes one example of shape \(4,\)"):
        export_predict(model, np.zeros((5, 4), np.float32))
    for platforms in ("cpu", ["gpu"], ["cpu", "abacus"]):
        with pytest.raises(ValueError, match="names out of cpu, cuda, rocm, tpu, got"):
            export_predict(model, np.zeros(4, np.float32), platforms=platforms)
