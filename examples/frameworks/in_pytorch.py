"""The MNIST network in PyTorch."""

import time

import numpy as np
import torch
from problem import RATE, Run, report
from torch import nn


def network_of(weights):
    modules = []
    for w, b in weights:
        linear = nn.Linear(*w.shape)
        # PyTorch keeps [out, in].
        linear.weight.data = torch.from_numpy(w.T.copy())
        linear.bias.data = torch.from_numpy(b.copy())
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def train(problem, epochs, compiled=False):
    network = network_of(problem.weights)
    forward = torch.compile(network) if compiled else network
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    cross_entropy = nn.CrossEntropyLoss()

    losses, seconds = [], []
    for epoch in range(epochs):
        started = time.perf_counter()
        for x, y in problem.batches(epoch):
            x, y = torch.from_numpy(x), torch.from_numpy(y).long()
            optimizer.zero_grad()
            loss = cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds.append(time.perf_counter() - started)

    @torch.no_grad()
    def trained(x):
        return network(torch.from_numpy(x)).numpy()

    return Run(np.array(losses), np.array(seconds), trained)


if __name__ == "__main__":
    report(train)
