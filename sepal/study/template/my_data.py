"""The data of each client: write here how yours are read. The server never sees them."""

import numpy as np
from sklearn.datasets import load_breast_cancer

CLIENTS = 4


def load(client):
    """Return (x_train, y_train, x_test, y_test) of one client: float32 (n, 30), and class numbers int64 (n,).

    Here a table of scikit-learn's is dealt to four clients. In a deployment, where each machine has data of its own,
    the function takes no argument. Its shape and number of classes stand in run.toml, under [own].
    """
    table = load_breast_cancer()
    client_rows = np.random.default_rng(7).permutation(len(table.data))[client % CLIENTS :: CLIENTS]
    train, test = np.split(client_rows, [len(client_rows) * 3 // 4])
    training_rows = table.data[train]  # what this client may standardise by: neither its test examples nor others' data
    x = ((table.data - training_rows.mean(0)) / training_rows.std(0)).astype(np.float32)
    return x[train], table.target[train], x[test], table.target[test]
