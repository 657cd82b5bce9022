"""What every registered method must do: the suite that a new method joins by its line in the registry.

The checks themselves are those of ``sepal check-method``, for methods of anybody (sepal.study.method_checks). A variant
that takes other paths joins by a line in ``CASES`` of tests/methods.py.

No test here knows a method by name. The tests of a case share its run: xdist gives the tests of a file to one worker.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from sepal.engines.in_process import run_in_process
from sepal.errors import ConfigError
from sepal.protocol.types import Kind
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.method_checks import checks
from tests.methods import CASES, LEARNING, TO_LEARN, case, flat

GENERATES = {"pa3dfl", "pfedhn"}
METHODS = pytest.mark.parametrize("name", CASES)
# A kill before the first checkpoint and one at a checkpoint take the engine's path, whatever the method: one case per
# kind of state. The same holds for the two codings of 16 bits: one dense and one sparse upload.
KINDS = ("fedavg", "fedstc", "fedpse", "dmpfl", "subfedavg", "pa3dfl")
KILLS = [(name, 3) for name in CASES]
KILLS += [(name, after) for name in KINDS for after in (1, 2)]
SMALLER = [*((name, "fp16") for name in KINDS), ("fedavg", "bf16"), ("fedpse", "bf16")]


@METHODS
def test_every_client_is_evaluated_at_the_end_in_all_views_that_exist(name):
    checks.evaluated_at_the_end(case(name))


@pytest.mark.parametrize("name", LEARNING)
def test_training_learns_something(name):
    """Ten classes at Dirichlet(1): the most frequent class of one's own data is worth about .3."""
    keys = {"rounds": 3, "local-epochs": 2, "clients-per-round": 0, "batch-size": 16, "partition.subsample": 500}
    # Sparse models start slowly: their signals are small at first. The rates are not those of a calibration.
    keys |= {"momentum": 0.8, "lr": 0.1, "evaluate-every": 0}
    strategy = run_in_process(assemble(flat(name, **(keys | TO_LEARN.get(name, {})))))
    assert strategy.report.accuracy["trained"]["mean"] > 0.5


@METHODS
def test_a_run_shows_no_warning_of_torch(name):
    """Such as of arrays that may not be written, which a run's first weights are."""
    assert not [words for words in case(name).finished().warnings if "not writable" in words]


@METHODS
def test_a_limit_on_the_norms_of_uploads_is_refused_where_uploads_are_bits(name):
    tensors = case(name).first.upload.tensors.values()
    bits = bool(tensors) and all(tensor.values is None for tensor in tensors)
    keys = {**flat(name), "max-update-norm": 3.0}
    with pytest.raises(ConfigError, match="max-update-norm: expected 0") if bits else nullcontext():
        assemble(keys)


@METHODS
def test_the_ledger_counts_the_encoded_bytes(name):
    checks.ledger_counts_bytes(case(name))


@METHODS
def test_no_weights_are_downloaded_in_the_first_round(name):
    """Clients derive W_0 from the seed. Hypernetworks generate personal tensors that no client can derive."""
    sizes = [entry.payload for entry in case(name).finished().lines.records[0].ledger if entry.direction == "down"]
    assert sizes
    least_model = 1000 * 4  # bytes; FedPSE sends its empty sparse update, 187 bytes
    assert all((size > least_model) == (name.partition("-")[0] in GENERATES) for size in sizes)


@METHODS
def test_a_download_is_composed_once_and_an_upload_decoded_at_most_twice(name):
    run = case(name).finished()
    replies = [reply for record in run.lines.records for reply in record.replies.values()]
    assert run.composed == {(reply.round, reply.client.name): 1 for reply in replies}
    assert set(run.decoded) == {(reply.round, reply.client.name) for reply in replies if reply.kind is Kind.TRAIN}
    assert max(run.decoded.values()) <= 2


@pytest.mark.parametrize(("name", "killed_after"), KILLS)
def test_a_killed_server_resumes_to_the_same_end(name, killed_after):
    checks.resumes_after_a_kill(case(name), killed_after)


@METHODS
def test_states_survive_the_disk(name):
    checks.state_survives_the_disk(case(name))


@pytest.mark.parametrize("name", CASES)
def test_a_round_without_uploads_leaves_a_state_to_go_on_with(name):
    checks.a_round_may_have_no_uploads(case(name))


@pytest.mark.parametrize(("name", "values"), SMALLER)
def test_smaller_values_make_fewer_bytes(name, values):
    checks.smaller_values_make_fewer_bytes(case(name), values)


@METHODS
def test_smaller_values_make_a_smaller_first_upload(name):
    checks.smaller_values_make_a_smaller_first_upload(case(name))


@METHODS
def test_an_upload_follows_the_contract_and_a_bent_one_does_not(name):
    checks.uploads_follow_the_schema(case(name))


@METHODS
def test_a_method_writes_into_nothing_that_it_is_handed(name):
    checks.handed_in_stays(case(name))


@METHODS
def test_training_again_from_the_same_state_gives_the_same_bits_and_another_seed_gives_others(name):
    checks.training_is_pure(case(name))


@pytest.mark.parametrize("name", registry.METHODS)
def test_its_keys_have_defaults_and_descriptions(name):
    checks.keys_are_described(case(name))


@METHODS
def test_novel_clients_never_train_and_are_reported_apart(name):
    checks.novel_clients_are_apart(case(name))
