"""A subclass has what its class can do, as long as it overrides nothing that this rests on."""

from __future__ import annotations

from functools import partial

import pytest

from sepal.errors import ConfigError
from sepal.method import capabilities
from sepal.method.client_base import ClientBase
from sepal.method.interface import resolve
from sepal.method.server_base import ServerBase
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer
from sepal.strategies.baselines.fedprox import FedProxClient
from sepal.strategies.dmpfl.client import DmPflClient
from sepal.strategies.registration import register

CLIENTS = {
    capabilities.PRIVATE: FedAvgClient,
    capabilities.BATCHED: FedAvgClient,
    capabilities.DENSE_CLIENT: FedAvgClient,
    capabilities.COMBINATION: DmPflClient,
}
SERVERS = {
    capabilities.DENSE_SERVER: FedAvgServer,
    capabilities.ROBUST: FedAvgServer,
    capabilities.CAPACITY: type("Cutting", (FedAvgServer,), {"uses_capacity": True}),
}
ALL = [(capability, kind) for capability, kind in (CLIENTS | SERVERS).items()]
EVERY_STEP = {
    base: sorted(name for name, member in vars(base).items() if callable(member) and not name.startswith("_"))
    for base in (ClientBase, ServerBase)
}
STEPS = [
    (capability, kind, step)
    for capability, kind in ALL
    for step in EVERY_STEP[ServerBase if issubclass(kind, ServerBase) else ClientBase]
]


def sub(kind, *names, **claims):
    """A subclass that overrides ``names`` without changing what they do."""
    return type(f"Sub{kind.__name__}", (kind,), {**{name: getattr(kind, name) for name in names}, **claims})


def as_a_method(server=FedAvgServer, client=FedAvgClient):
    return register("mine", "", "", server, client)


def test_a_subclass_of_a_subclass_that_changes_the_loss_alone_has_all_of_it():
    class Mine(FedProxClient):
        def hooks(self, received, plan):
            return super().hooks(received, plan)

        def of_its_own(self):
            return 1

    method = as_a_method(client=Mine)
    assert (method.private_phases, method.batched, method.dense, method.robust) == (("",), True, True, True)
    for keys in ({"privacy.clip": 1.0}, {"compress.name": "stc"}, {"robust-mean": "median"}):
        assemble({"dataset": "digits", **keys}, method)


@pytest.mark.parametrize(("capability", "kind", "step"), STEPS, ids=lambda value: getattr(value, "attribute", None))
def test_each_step_voids_what_rests_on_it_unless_it_is_claimed_again(capability, kind, step):
    claim = getattr(kind, capability.attribute)
    assert capability.of(kind) == claim != capability.without
    below = sub(kind, step)
    free = step in capability.free
    assert capability.of(below) == (claim if free else capability.without)
    assert capability.overridden(below) == (() if free else (step,))
    assert capability.of(sub(below)) == capability.of(below), "and so it is further down"
    assert capability.of(sub(kind, step, **{capability.attribute: claim})) == claim
    assert capability.of(type("Mixed", (type("Mixin", (), {step: getattr(kind, step)}), kind), {})) == capability.of(
        below
    )


@pytest.mark.parametrize(
    "step", ["train", "adapt", "received_weights", "upload", "shared", "fit", "personal_weights", "init", "_released"]
)
def test_uploads_count_as_noised_only_where_nothing_but_the_loss_and_the_predictor_is_changed(step):
    assert as_a_method(client=sub(FedAvgClient, step)).private_phases == ()
    with pytest.raises(ConfigError) as error:
        assemble({"dataset": "digits", "privacy.clip": 1.0}, as_a_method(client=sub(FedAvgClient, step)))
    assert f"; SubFedAvgClient overrides {step} and does not claim private_phases again (those of fedavg, " in str(
        error.value
    )


def test_every_free_name_is_a_step():
    optional = {"joined", "evicted"}  # servers that keep something about a client have them
    for capability, kind in ALL:
        base = ServerBase if issubclass(kind, ServerBase) else ClientBase
        assert capability.free - set(EVERY_STEP[base]) - optional - {"update"} == set(), capability.attribute


def test_a_factory_claims_what_it_says_itself():
    factory = partial(FedAvgClient)
    assert as_a_method(client=factory).private_phases == ()
    factory.private_phases = ("",)
    assert as_a_method(client=factory).private_phases == ("",)


def test_a_class_can_take_a_claim_back():
    assert as_a_method(client=sub(FedAvgClient, private_phases=())).private_phases == ()


def test_a_method_whose_own_keys_compress_takes_no_others():
    with pytest.raises(ConfigError, match=r"compress\.name: expected none: fedstc compresses by keys of its own"):
        assemble({"method": "fedstc", "dataset": "digits", "compress.name": "topk"})


@pytest.mark.parametrize(
    ("keys", "server", "client", "words"),
    [
        ({"compress.name": "stc"}, FedAvgServer, sub(FedAvgClient, "upload"), "SubFedAvgClient overrides upload"),
        ({"compress.name": "stc"}, sub(FedAvgServer, "download"), FedAvgClient, "SubFedAvgServer overrides download"),
        (
            {"robust-mean": "median"},
            sub(FedAvgServer, "aggregate"),
            FedAvgClient,
            "SubFedAvgServer overrides aggregate",
        ),
    ],
)
def test_the_error_says_what_was_overridden(keys, server, client, words):
    with pytest.raises(ConfigError, match=words):
        assemble({"dataset": "digits", **keys}, as_a_method(server, client))


def test_built_in_methods_refuse_without_naming_classes():
    with pytest.raises(ConfigError) as error:
        assemble({"method": "pfedme", "dataset": "digits", "privacy.clip": 1.0})
    assert "overrides" not in str(error.value)
    assert registry.get("pfedme").private_phases == ()


@pytest.mark.parametrize("name", sorted(registry.METHODS))
def test_a_subclass_has_every_limit_whatever_it_overrides(name):
    """Also after :func:`register` without a word of them: a method that forgot one would be wrong in silence."""
    method = registry.get(name)
    server, client = resolve(method.server), resolve(method.client)
    if not isinstance(server, type) or not isinstance(client, type):  # a factory is registered as it is
        return
    subclassed = as_a_method(sub(server, "aggregate", "download"), sub(client, "train", "upload"))
    limits = [(record.scheduled, record.needs_of_task, record.fixed_keys) for record in (method, subclassed)]
    assert limits[0] == limits[1]


def test_these_methods_have_limits():
    limited = {
        name for name in registry.METHODS if (m := registry.get(name)).scheduled or m.needs_of_task or m.fixed_keys
    }
    known = "dmpfl feddst fedem fedproto fedrod fedrolex fjord heterofl pa3dfl pfedgate scaffold subfedavg"
    assert set(known.split()) <= limited


def test_a_limit_claims_nothing_and_voids_nothing():
    kind = sub(FedAvgClient, needs_of_task=("labels",))
    assert capabilities.PRIVATE.of(kind) == FedAvgClient.private_phases
