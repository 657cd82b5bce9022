"""An MLP of one hidden layer in float64 NumPy: what tests of methods compute beside the code under test."""

from __future__ import annotations

import numpy as np


def data(host):
    trainer = host.algorithm.trainer
    return trainer.x.numpy().reshape(len(trainer.y), -1).astype(np.float64), trainer.y.numpy()


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def gradients(w, rows, x, target, scale=1.0, absent=()):
    """Gradient of the cross-entropy of an MLP with the hidden units ``rows`` (of all of ``w``), zero elsewhere."""
    before = (x @ w["fc1.weight"][rows].T + w["fc1.bias"][rows]) / scale
    h = np.maximum(before, 0)
    z = h @ w["fc2.weight"][:, rows].T + w["fc2.bias"]
    z[:, list(absent)] = 0
    slope = (softmax(z) - target) / len(x)
    slope[:, list(absent)] = 0
    back = (slope @ w["fc2.weight"][:, rows]) * (before > 0) / scale
    slopes = {name: np.zeros_like(value) for name, value in w.items()}
    slopes["fc1.weight"][rows], slopes["fc1.bias"][rows] = back.T @ x, back.sum(0)
    slopes["fc2.weight"][:, rows], slopes["fc2.bias"] = slope.T @ h, slope.sum(0)
    return slopes, z
