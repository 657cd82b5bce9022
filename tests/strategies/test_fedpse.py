"""FedPSE against its paper: the worked numbers of Appendix A, the algorithms' invariants, the limit case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal.engines.in_process import run_in_process
from sepal.layout import Parameter, Role
from sepal.masks.flat import Flat
from sepal.masks.selection import count
from sepal.method import ClientInfo, Payload, Upload
from sepal.rng import derive
from sepal.strategies.assembly import assemble
from sepal.strategies.fedpse.server import aggregate, correlation_distance, members, personal_support
from sepal.wire.tensors import SparseTensor
from tests.scratch_store import ScratchStore

PAIR = Flat((Parameter("w", (2,), Role.WEIGHT),))


def uploads(vectors, examples=None, keep_zero=()):
    """Sparse updates as the paper writes them: a 0 is an entry that was not sent."""
    out = []
    for number, vector in enumerate(vectors):
        index = np.array([i for i, v in enumerate(vector) if v or (number, i) in keep_zero], np.int64)
        values = np.array([vector[i] for i in index], np.float32)
        client = ClientInfo(f"c{number}", (examples or [1] * len(vectors))[number])
        out.append(Upload(client, Payload({"w": SparseTensor((2,), index, values)})))
    return out


# Appendix A: three clients, n_i = 1. Per entry, EWA divides by the number of clients that sent it:
# IID      (0,1), (2,0), (0,3): (2/1, (1+3)/2) = (2, 2);    naive divides by 3: (2/3, 4/3)
# non-IID  (0,2), (3,0), (0,4): (3/1, (2+4)/2) = (3, 3);    naive: (1, 2)
@pytest.mark.parametrize(
    ("vectors", "ewa", "expected"),
    [
        ([(0, 1), (2, 0), (0, 3)], True, (2, 2)),
        ([(0, 1), (2, 0), (0, 3)], False, (2 / 3, 4 / 3)),
        ([(0, 2), (3, 0), (0, 4)], True, (3, 3)),
        ([(0, 2), (3, 0), (0, 4)], False, (1, 2)),
    ],
)
def test_appendix_a(vectors, ewa, expected):
    result, sent = aggregate(uploads(vectors), PAIR, ewa)
    np.testing.assert_allclose(result, expected, rtol=1e-7)
    assert sent.all()


def test_appendix_a_weighted_by_examples():
    """n = (1, 2, 3) on the non-IID case: entry 0 only from client 2: 3; entry 1: (1·2 + 3·4)/(1 + 3) = 14/4 = 3.5."""
    result, _ = aggregate(uploads([(0, 2), (3, 0), (0, 4)], [1, 2, 3]), PAIR)
    np.testing.assert_array_equal(result, np.array([3, 3.5], np.float32))


def test_a_sent_zero_counts_as_sent():
    """Client 1 sent entry 1 with value 0: EWA is (1 + 0 + 3)/3, not (1 + 3)/2: membership is the index set."""
    result, _ = aggregate(uploads([(0, 1), (2, 0), (0, 3)], keep_zero={(1, 1)}), PAIR)
    np.testing.assert_allclose(result, (2, 4 / 3), rtol=1e-7)


def test_an_entry_that_nobody_sent_stays_zero():
    result, sent = aggregate(uploads([(0, 1), (0, 3)]), PAIR)
    assert result.tolist() == [0, 2]
    assert sent.tolist() == [False, True]


def distance(a, b):
    """Of two sparse vectors, each positions and values."""
    return correlation_distance(a[1], a[1][np.isin(a[0], b[0])], b[1], b[1][np.isin(b[0], a[0])])


def support(server, client, distance, rng):
    shared, client_only, server_only = (
        np.intersect1d(client, server),
        np.setdiff1d(client, server),
        np.setdiff1d(server, client),
    )
    return personal_support(shared, client_only, server_only, distance, rng)


def test_correlation_distance_by_hand():
    """a = (3, 4, 0), b = (0, 4, 3): cos = 16/25, d = .5 - .32 = .18. Opposite vectors: 1. Nothing in common: .5."""
    a, b = (np.array([0, 1]), np.array([3, 4], np.float32)), (np.array([1, 2]), np.array([4, 3], np.float32))
    assert distance(a, b) == pytest.approx(0.18)
    assert distance(a, (a[0], -a[1])) == pytest.approx(1.0)
    assert distance(a, a) == pytest.approx(0.0)
    assert distance((np.array([0]), np.ones(1, np.float32)), (np.array([1]), np.ones(1, np.float32))) == 0.5


def test_correlation_distance_of_zero_is_a_half():
    assert distance((np.array([0]), np.zeros(1, np.float32)), (np.array([0]), np.ones(1, np.float32))) == 0.5


def test_personal_support_by_hand():
    """k = 4, intersection {2, 3}; 2 places left; d = .25 gives the client's own .5, rounded half up: 1 of each."""
    server, client = np.array([0, 1, 2, 3]), np.array([2, 3, 4, 5])
    chosen = support(server, client, 0.25, derive(0, "test"))
    assert len(chosen) == 4
    assert {2, 3} <= set(chosen.tolist())
    assert len({0, 1} & set(chosen.tolist())) == 1
    assert len({4, 5} & set(chosen.tolist())) == 1


sets = st.sets(st.integers(0, 40), max_size=30)


@given(sets, sets, st.floats(0, 1), st.integers(0, 99))
def test_personal_support_sends_exactly_what_it_may(server, client, distance, seed):
    """Support ⊆ M_i ∪ M_s, contains the intersection, and has min(k, |M_i ∪ M_s|) entries with k = |M_s|."""
    s, c = np.array(sorted(server), np.int64), np.array(sorted(client), np.int64)
    chosen = support(s, c, distance, derive(seed, "test"))
    assert set(chosen.tolist()) <= server | client
    assert server & client <= set(chosen.tolist())
    assert len(set(chosen.tolist())) == len(chosen) == min(len(server), len(server | client))
    assert (np.diff(chosen) > 0).all()


def test_personal_support_draws_from_the_clients_own_first_and_then_from_the_servers():
    """The same numbers of the generator give the same support, whatever way it is put together."""
    rng = np.random.default_rng(3)
    server, client = (np.flatnonzero(rng.random(60_000) < 0.5) for _ in range(2))
    draw = derive(1, "test")
    client_only, server_only = np.setdiff1d(client, server), np.setdiff1d(server, client)
    share = int(0.3 * server_only.size + 0.5)
    drawn = [
        draw.choice(pool, k, replace=False, shuffle=False)
        for pool, k in ((client_only, share), (server_only, server_only.size - share))
    ]
    expected = np.sort(np.concatenate([np.intersect1d(client, server), *drawn]))
    np.testing.assert_array_equal(support(server, client, 0.3, derive(1, "test")), expected)


@pytest.fixture(scope="module")
def runs():
    base = {"dataset": "digits", "clients": 4, "partition.name": "lambda-mix", "partition.subsample": 240}

    def run(method, rounds=3, **keys):
        flat = {**base, "method": method, "rounds": rounds, "evaluate-every": 0, **keys}
        return run_in_process(assemble(flat))

    return run


class Spy:
    """Keeps a round's uploads and the state around it."""

    def __init__(self, algorithm):
        self.algorithm, self.aggregations = algorithm, []
        self.inner = algorithm.aggregate
        algorithm.aggregate = self

    def __call__(self, state, uploads, plan):
        after, metrics = self.inner(state, uploads, plan)
        self.aggregations.append((state, list(uploads), after))
        return after, metrics


def test_downloads_are_within_both_supports_and_carry_the_ewa_values(runs):
    from sepal.server.strategy import SepalStrategy

    spies = []
    original = SepalStrategy.__init__

    def spied(self, *args, **kwargs):
        original(self, *args, **kwargs)
        spies.append(Spy(self.algorithm))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SepalStrategy, "__init__", spied)
        strategy = runs("fedpse", **{"fedpse.keep": 0.1})
    algorithm = strategy.algorithm
    k = count(0.1, algorithm.flat.size)
    for _, sent, after in spies[0].aggregations:
        update, anybody = aggregate(sent, algorithm.flat)
        server = set(algorithm._top_k(update, anybody).tolist())
        for upload in sent:
            index, values = algorithm.flat.gather(upload.payload.tensors)
            assert index.size == k
            down, down_values = algorithm.flat.gather(after.pending[upload.client.name])
            assert set(down.tolist()) <= server | set(index.tolist())
            assert down.size == min(len(server), len(server | set(index.tolist())))
            np.testing.assert_array_equal(down_values, update[down])
            assert np.isfinite(values).all()


def test_sent_plus_residual_is_what_was_gained_exactly():
    """Δ̂ + e = ΔW, bit for bit (Algorithm 1, lines 9-11), also where values are rounded to fp16 on the way."""
    for values in ("fp32", "fp16", "bf16"):
        flat = {"method": "fedpse", "dataset": "digits", "clients": 3, "rounds": 1, "values": values}
        assembly = assemble({**flat, "partition.name": "iid"})
        from sepal.client_app.build import Node, Shared, build_host

        host = build_host(Shared.around(assembly, "cpu"), Node(0, 3), "run", ScratchStore())
        algorithm, server = host.algorithm, assembly.method.make_server(assembly.setup)
        plan = server.plan(1)
        download = server.newcomer(server.init(), host.info, plan)
        state, upload = algorithm.train(algorithm.init(), download, plan)
        gained = algorithm.flat.join(state.model) - algorithm.flat.join(state.base)
        index, sent = algorithm.flat.gather(upload.tensors)
        total = algorithm.flat.join(state.residual)
        total[index] += sent
        np.testing.assert_array_equal(total, gained)
        assert index.size == count(0.1, algorithm.flat.size)
        np.testing.assert_array_equal(algorithm.flat.join(state.base), algorithm.flat.join(assembly.setup.weights))


def test_keeping_everything_is_fedavg(runs):
    """p = 0 and one base: the update is the weighted mean of all updates, so W_0 + Σ ΔW is FedAvg's model.

    They are not the same bits: one averages weights, the other differences.
    """
    sparse, plain = runs("fedpse", lr=0.2, **{"fedpse.keep": 1.0}), runs("fedavg", lr=0.2)
    fedpse_model, fedavg_model = (
        sparse.algorithm.model(sparse.progress.server),
        plain.algorithm.model(plain.progress.server),
    )
    for name in fedavg_model:
        np.testing.assert_allclose(fedpse_model[name], fedavg_model[name], atol=2e-6)
    start = plain.setup.weights
    assert max(np.abs(fedavg_model[n] - start[n]).max() for n in fedavg_model) > 1e-2, "nothing was trained"


def test_ablations_differ_from_the_method(runs):
    """Without DPS everybody gets the same support; without EWA the update is smaller where few sent."""
    plain = runs("fedpse", rounds=1)
    same = runs("fedpse", rounds=1, **{"fedpse.dps": False})
    naive = runs("fedpse", rounds=1, **{"fedpse.ewa": False})

    def supports(strategy):
        pending = strategy.progress.server.pending
        return [strategy.algorithm.flat.gather(pending[name])[0].tolist() for name in sorted(pending)]

    assert all(support == supports(same)[0] for support in supports(same))
    assert len({tuple(support) for support in supports(plain)}) > 1
    norms = [float(np.linalg.norm(s.algorithm.flat.join(s.progress.server.total))) for s in (plain, naive)]
    assert norms[1] < norms[0]


def test_per_layer_top_k_keeps_its_share_of_every_tensor(runs):
    strategy = runs("fedpse", rounds=1, **{"fedpse.per-layer": True, "fedpse.dps": False})
    pending = next(iter(strategy.progress.server.pending.values()))
    for parameter in strategy.algorithm.flat.layout:
        assert pending[parameter.name].nnz == count(0.1, parameter.size)


def test_a_client_that_waits_gets_the_same_update_later(runs):
    """With 2 of 4 clients a round, an update made for a client waits unchanged until the client takes part again."""
    from sepal.server.strategy import SepalStrategy

    spies = []
    original = SepalStrategy.__init__

    def spied(self, *args, **kwargs):
        original(self, *args, **kwargs)
        spies.append(Spy(self.algorithm))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SepalStrategy, "__init__", spied)
        runs("fedpse", rounds=6, **{"clients-per-round": 2})
    waited = 0
    for before, sent, after in spies[0].aggregations:
        took_part = {upload.client.name for upload in sent}
        for name in set(before.pending) - took_part:
            assert after.pending[name] is before.pending[name]
            waited += 1
    assert waited


def test_examples_beyond_32_bits_count_in_full():
    """n = (2³², 2, 2³²): entry 0 only from client 1: 3; entry 1: (1·2³² + 5·2³²) / 2³³ = 3."""
    result, _ = aggregate(uploads([(0, 1), (3, 0), (0, 5)], [2**32, 2, 2**32]), PAIR)
    np.testing.assert_array_equal(result, np.array([3, 3], np.float32))


def test_membership_is_that_of_numpy_s_set_functions():
    """Of sorted positions, empty ones too."""
    rng = np.random.default_rng(0)
    for size in (0, 1, 50, 400):
        a = np.sort(rng.choice(500, size, replace=False)).astype(np.int64)
        b = np.sort(rng.choice(900, 100, replace=False)).astype(np.int64)
        np.testing.assert_array_equal(members(a, 900)[b], np.isin(b, a))
        np.testing.assert_array_equal(members(b, 900)[a], np.isin(a, b))
