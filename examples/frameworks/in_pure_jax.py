"""The MNIST network in JAX and Optax alone; see ../pure_jax.py for a commented one."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from problem import RATE, Run, report

OPTIMIZER = optax.adam(RATE)


def forward(params, x):
    *hidden, (w, b) = params
    for v, c in hidden:
        x = jax.nn.relu(x @ v + c)
    return x @ w + b


def loss_of(params, x, y):
    logits = forward(params, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@jax.jit
def step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    updates, opt_state = OPTIMIZER.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def train(problem, epochs):
    params = jax.tree.map(jnp.asarray, problem.weights)
    opt_state = OPTIMIZER.init(params)

    losses, seconds = [], []
    for epoch in range(epochs):
        started = time.perf_counter()
        for x, y in problem.batches(epoch):
            params, opt_state, loss = step(params, opt_state, x, y)
            losses.append(loss)
        jax.block_until_ready(params)
        seconds.append(time.perf_counter() - started)

    return Run(np.array(losses), np.array(seconds), lambda x: forward(params, x))


if __name__ == "__main__":
    report(train)
