"""The default rates that a run gets: which entry of the table, what wins over it, and what the user is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.data.catalogue import CATALOGUE
from sepal.strategies import calibrated, registry
from sepal.strategies.assembly import assemble
from sepal.strategies.calibrated import FINDS, CalibratedRates, rates

DIGITS = CATALOGUE["digits"]
TABLE = (
    CalibratedRates(
        "digits", "digits-cnn", "sgd", "image", 64, {"fedavg": {"lr": 0.2}, "ditto": {"lr": 0.3, "ditto.lambda": 2}}
    ),
    CalibratedRates("cifar-10", "lenet5", "sgd", "image", 3072, {"fedavg": {"lr": 0.05}}),
    CalibratedRates("har", "har-cnn", "sgd", "signal", 1152, {"fedavg": {"lr": 0.1}, "fedpse": {"lr": 0.4}}),
    CalibratedRates("imdb", "embedding-linear", "adam", "text", 256, {"fedavg": {"lr": 0.01}}),
)


@pytest.fixture(autouse=True)
def table(request, monkeypatch):
    if "real" not in request.keywords:
        monkeypatch.setattr(calibrated, "table", lambda: TABLE)


def own_data(**changes):
    return replace(DIGITS, name="own", **changes)


def test_a_listed_method_and_data_set_has_its_own_rates():
    defaults = rates("ditto", DIGITS, "digits-cnn", "sgd")
    assert (dict(defaults.keys), defaults.exact, defaults.origin) == (
        {"lr": 0.3, "ditto.lambda": 2},
        True,
        "calibrated for ditto on digits",
    )
    assert defaults.of_method("ditto") == {"lambda": 2}


@pytest.mark.parametrize(
    ("info", "lr"),
    [
        (own_data(input_shape=(1, 16, 16)), 0.2),  # 256 is nearer to 64 than to 3,072 in logarithms: ratios 4 and 12
        (own_data(input_shape=(3, 64, 64)), 0.05),
        (own_data(input_shape=(30,), kind="signal"), 0.1),  # of the same kind, although digits are nearer in size
    ],
)
def test_own_data_has_the_rate_of_the_nearest_data_set(info, lr):
    defaults = rates("fedavg", info, "mine:build", "sgd")
    assert defaults.keys == {"lr": lr}
    assert not defaults.exact


def test_the_line_says_what_the_rates_are_for_and_what_searches():
    info = own_data(input_shape=(1, 8, 8))
    assert rates("fedavg", info, "mine:build", "sgd").origin == (
        "calibrated for fedavg on digits with digits-cnn, not for fedavg on own; " + FINDS
    )
    assert rates("fedavg", DIGITS, "mine:build", "sgd").origin == (
        "calibrated for fedavg on digits with digits-cnn, not for the model mine:build; " + FINDS
    )


def test_a_method_that_is_not_listed_there_has_its_own_rate_of_another_data_set():
    assert rates("fedpse", DIGITS, "digits-cnn", "sgd").keys == {"lr": 0.4}


def test_a_rate_of_smaller_images_is_scaled_as_fedavgs_and_never_up():
    """Ditto is listed on digits alone: for photographs .3 · .05/.2; FedPSE's of HAR is not doubled for digits."""
    photographs = own_data(input_shape=(3, 64, 64))
    defaults = rates("ditto", photographs, "cnn2-small", "sgd")
    assert dict(defaults.keys) == {"lr": pytest.approx(0.075), "ditto.lambda": 2}
    assert (
        "for ditto on digits with digits-cnn, times 0.25 as fedavg's rate on cifar-10, not for ditto" in defaults.origin
    )
    assert not defaults.exact
    assert rates("ditto", own_data(input_shape=(1, 8, 8)), "digits-cnn", "sgd").keys["lr"] == 0.3
    assert rates("mine", photographs, "cnn2-small", "sgd").keys == {"lr": 0.05}


@pytest.mark.real
def test_photographs_have_no_rate_of_digits_of_8_x_8():
    """The methods that are calibrated on these images alone, the default method among them, had their whole rate."""
    photographs = own_data(input_shape=(3, 64, 64))
    for method in registry.names():
        digits_rate, photographs_rate = (
            rates(method, info, "auto", "sgd").keys["lr"] for info in (DIGITS, photographs)
        )
        assert photographs_rate <= digits_rate / 2, method


def test_a_method_that_is_listed_nowhere_has_fedavgs_rate():
    defaults = rates("mine", DIGITS, "digits-cnn", "sgd")
    assert (dict(defaults.keys), defaults.exact) == ({"lr": 0.2}, False)
    assert "not for mine on digits" in defaults.origin


def test_a_methods_own_default_rate_wins_over_fedavgs():
    """pFedMe's .09: its steps diverge from 2/λ = .13 on."""
    assembled = assemble({"dataset": "digits", "method": "pfedme"})
    assert (assembled.setup.config.lr, assembled.notes) == (0.09, ())


def test_rates_of_sgd_are_not_used_for_adam():
    assert rates("fedavg", DIGITS, "digits-cnn", "adam").keys == {"lr": 0.01}


def test_given_keys_win_over_the_table():
    assembled = assemble({"dataset": "digits", "method": "ditto", "lr": 0.7, "ditto.lambda": 0.5})
    assert (assembled.setup.config.lr, assembled.setup.hyper.lam, assembled.notes) == (0.7, 0.5, ())


def test_a_run_says_which_rates_it_took():
    assembled = assemble({"dataset": "digits", "method": "ditto"})
    assert (assembled.setup.config.lr, assembled.setup.hyper.lam) == (0.3, 2)
    assert assembled.notes == ("lr = 0.3, ditto.lambda = 2: calibrated for ditto on digits",)


def test_with_momentum_the_rate_is_smaller():
    assembled = assemble({"dataset": "digits", "method": "fedavg", "momentum": 0.75})
    assert assembled.setup.config.lr == 0.05  # .2 · (1 - .75): a gradient counts 4 times
    assert assembled.notes == ("lr = 0.05: calibrated for fedavg on digits, times 1 - momentum = 0.25",)


def test_an_own_rate_that_is_not_in_the_table_has_the_papers_value():
    assert assemble({"dataset": "digits", "method": "fedprox"}).setup.hyper.mu == 0.01


@pytest.mark.real
def test_the_table_has_known_data_sets_methods_and_keys():
    for entry in calibrated.table():
        info = CATALOGUE[entry.dataset]
        assert (entry.model, entry.optimizer, entry.kind) == (
            info.defaults["model"],
            info.defaults["optimizer"],
            info.kind,
        )
        for method, keys in entry.rates.items():
            hyper = registry.get(method).hyper
            own_keys = {key.removeprefix(f"{method}.") for key in keys if key != "lr"}
            automatic = {info.alias or name for name, info in hyper.model_fields.items() if info.default == "auto"}
            assert own_keys <= automatic, (entry.dataset, method)
            assert all(value >= 0 for value in keys.values())
