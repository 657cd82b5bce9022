"""The bytes that the bench of secure sums counts are those of the formula in docs/secure-sums.md."""

from __future__ import annotations

import pytest

from tools.bench.secure_sums import rows


@pytest.mark.parametrize("clients", [3, 10])
def test_a_clients_bytes_are_those_of_the_formula(clients):
    client, server = rows(clients, entries=50)
    n, k, d, b, m = clients, clients - 1, 50, 32, 0
    assert client["up_bytes"] == 64 + 86 * k + d * b // 8 + 4 * m + 37 * n
    assert client["down_bytes"] == 68 * k + 86 * k + -(-n // 8)
    assert server["seconds"] > 0
