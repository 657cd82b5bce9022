"""The rules between run-config keys alone.

The rules between keys and a run's method, data and model are in :mod:`sepal.strategies.rules`, and those between keys
and the clients that have registered in :mod:`sepal.server.rules`. A rule of one method's own keys is in its folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sepal.config.run import RunConfig
from sepal.errors import ConfigError

AGREED_SUPPORT = ("randk",)  # values of compress.name by which all clients of a round send the same entries
# Keys privacy.* that have no effect in another mode. With shares of noise in a secure sum, no draw is secret from the
# server, and bits about clips would need noise among the figures.
_OF_CENTRAL = {"quantile": 0, "sampling": "fixed", "budget": 0}
MOST_NOISE = 10_000  # with privacy.mode = central or distributed; their numbers have 64 bits
OWN_DATA = ("own", "folder", "hf")  # data sets of which a client may have its own, which changes


def check_together(config: RunConfig) -> None:
    """Raise if two keys do not go together.

    Raises:
        ConfigError: See above.
    """
    if config.privacy.noise and not config.privacy.clip:
        raise ConfigError("privacy.clip", "above 0 with privacy.noise, which is a multiple of it", config.privacy.clip)
    _check_privacy(config)
    if config.stop_after and not config.split.validation:
        raise ConfigError("stop-after", "0 with split.validation = 0: it needs validation data", config.stop_after)
    if config.stop_after and not (config.evaluate_sampled or config.evaluate_every):
        expected = "0 with evaluate-sampled = false and evaluate-every = 0: it needs evaluations"
        raise ConfigError("stop-after", expected, config.stop_after)
    if config.engine.capture and config.engine.batch > 1:
        expected = "0 or 1 with engine.capture, which trains one client at a time"
        raise ConfigError("engine.batch", expected, config.engine.batch)
    _check_data_changes(config)
    _check_drift(config)
    _check_secure(config)
    _check_final_model(config)
    _check_round(config)
    _check_simulated_time(config)
    if config.split.test_of_labels and config.split.test_fraction:
        raise ConfigError("split.test-of-labels", "split.test-fraction = 0 beside it", config.split.test_fraction)
    if config.dataset == "own" and not config.own.shape:
        raise ConfigError("own.shape", "the shape of one example, such as 1x28x28 (dataset = own)", "nothing")
    _check_folder(config)
    if config.target_scale == "client" and config.task != "regression":
        expected = f"none for the task {config.task}: only targets of a regression are standardised"
        raise ConfigError("target-scale", expected, config.target_scale)
    least = 1 if config.task in ("regression", "multilabel") or ":" in config.task else 2
    if config.dataset == "own" and config.own.count(config.task) < least:
        raise ConfigError("own.classes", f"at least {least} (dataset = own)", config.own.classes)


def check_deployed(config: RunConfig) -> None:
    """Raise if a key needs clients on machines of their own. To be called where they are on the server's machine.

    Raises:
        ConfigError: See above.
    """
    if config.data_changes != "refuse":
        expected = "refuse where clients are on the server's machine: their data are those of the start (sepal serve)"
        raise ConfigError("data-changes", expected, config.data_changes)


def _check_folder(config: RunConfig) -> None:
    """Raise if keys ``folder.*`` have no effect, or another one than the user means."""
    if config.folder.missing == "mean" and not config.folder.standardize:
        expected = "refuse with folder.standardize = false: the mean is that of the standardisation"
        raise ConfigError("folder.missing", expected, config.folder.missing)
    if config.dataset == "folder":
        return
    named = {"label": config.folder.label, "person": config.folder.person, "leave-out": config.folder.leave_out}
    for key, value in {**named, "schema": config.folder.schema_}.items():
        if value:
            hint = f" (hf.{key} names it there)" if key in ("label", "person") and config.dataset == "hf" else ""
            raise ConfigError(f"folder.{key}", f"nothing with dataset = {config.dataset}{hint}", value)


def why_no_best(config: RunConfig) -> str:
    """Return why the best models of a run cannot be known; empty if they can."""
    if not (config.split.validation and config.evaluate_every):
        return "split.validation = 0 or evaluate-every = 0: the best is chosen by validation data"
    if config.roster != "closed" or not config.clients:
        return "a roster that is not closed: the best model may not know all clients"
    return ""


def _check_data_changes(config: RunConfig) -> None:
    """Raise if data that change are asked for, and cannot change or be split by each example alone."""
    if config.data_changes != "refuse" and config.dataset not in OWN_DATA:
        expected = f"refuse with dataset = {config.dataset}, which does not change ({', '.join(OWN_DATA)} may)"
        raise ConfigError("data-changes", expected, config.data_changes)
    if config.data_changes != "accept":
        return
    drawn = {"split.by": "random", "split.test-of-labels": False, "partition.subsample": 0}
    for key, value in drawn.items():
        if config.value(key) != value:
            expected = f"{str(value).lower()} with data-changes = accept: an example's part follows from it alone"
            raise ConfigError(key, expected, config.value(key))


def _check_drift(config: RunConfig) -> None:
    """Raise if a client's training data are to drift, and a key needs data that stay as they are."""
    if config.drift.name == "none":
        return
    why = "with drift.name: a round's training data are a window of"
    _check_plain(
        config,
        {
            "own.class-weights": ("none", f"{why} the examples, of which each has other classes"),
            **({"data-changes": ("refuse", f"{why} examples in an order")} if config.data_changes == "accept" else {}),
        },
    )


def _check_privacy(config: RunConfig) -> None:
    """Raise if a key of ``privacy.*`` has no effect in the run's mode, or its claim would not hold."""
    privacy = config.privacy
    why = f"with privacy.mode = {privacy.mode}"
    if not privacy.central:
        without = [key for key in _OF_CENTRAL if not (privacy.distributed and key == "budget")]
        _check_plain(config, {f"privacy.{key}": (_OF_CENTRAL[key], why) for key in without})
    if not privacy.of_rounds:
        return
    if not privacy.noise:
        raise ConfigError("privacy.noise", f"above 0 {why}", privacy.noise)
    if privacy.noise > MOST_NOISE:
        raise ConfigError("privacy.noise", f"at most {MOST_NOISE} {why}", privacy.noise)
    if privacy.distributed:
        shares = f"{why}: clients clip, and add their shares of the noise to a secure sum"
        _check_plain(config, {"secure": ("sum", shares), "secure-range": (8.0, f"{why}: the clip bounds a change")})
        if not config.secure_colluders:
            expected = f"at least 1 {why}: each client knows its own share, which is no noise to it"
            raise ConfigError("secure-colluders", expected, 0)
    else:
        _check_central(config, why)


def _check_central(config: RunConfig, why: str) -> None:
    """Raise if the server cannot add noise of the keys to a mean, or its claim would not hold."""
    privacy = config.privacy
    if not config.clients:
        raise ConfigError("clients", "a number with privacy.mode = central: the mean has a fixed divisor", 0)
    _check_plain(
        config,
        {
            "secure": ("off", f"{why}: noise on a secure sum is privacy.mode = distributed"),
            "robust-mean": ("none", f"{why}, whose noise is for a mean"),
            "max-update-norm": (0, f"{why}: clients and server clip, and who is refused would depend on all updates"),
            "compress.name": ("none", f"{why}: what is left out would depend on the updates without noise"),
        },
    )
    if privacy.sampling == "poisson":
        _check_poisson(config)
    if not config.clients_per_round:
        of_all = "with privacy.mode = central and clients-per-round = 0: a sum is divided by clients"
        _check_plain(config, {"roster": ("closed", of_all), "novel-clients": (0, of_all)})
    clients = config.clients_per_round or config.clients
    if privacy.quantile and privacy.noise >= clients / 10:  # 2σ_b, see sepal.server.central_noise
        expected = f"0 with privacy.noise of at least {clients / 10:g}, a tenth of a round's clients"
        raise ConfigError("privacy.quantile", expected, privacy.quantile)
    if privacy.quantile and (of_updates := multiplier_beside_bits(privacy.noise, clients)) > MOST_NOISE:
        expected = f"further below {clients / 10:g}, a tenth of a round's clients, with privacy.quantile"
        got = f"{privacy.noise}: it leaves updates a multiplier of {of_updates:.4g}, above {MOST_NOISE}"
        raise ConfigError("privacy.noise", expected, got)


def multiplier_beside_bits(noise: float, clients: int) -> float:
    """Return z_Δ, with which updates and bits together cost what ``noise`` would: (z^-2 - (m/10)^-2)^-1/2.

    It is infinite from z = m/10 on. Andrew et al. 2021, Theorem 1, with σ_b = m/20.

    Args:
        noise: z.
        clients: m.
    """
    rest = noise**-2 - (clients / 10) ** -2
    return float(rest**-0.5) if rest > 0 else math.inf


def _check_poisson(config: RunConfig) -> None:
    """Raise if a client would not be drawn with the probability clients-per-round / clients, by itself."""
    why = "with privacy.sampling = poisson"
    if not 0 < config.clients_per_round < config.clients:
        expected = f"from 1 to {config.clients - 1} {why}: the mean number of clients that are drawn"
        raise ConfigError("clients-per-round", expected, config.clients_per_round)
    _check_plain(
        config,
        {
            "roster": ("closed", f"{why}: the probability is clients-per-round / clients"),
            "novel-clients": (0, f"{why}: the probability is clients-per-round / clients"),
            "oversample": (1, f"{why}: each client is drawn by itself"),
            "min-replies": (1, f"{why}: a round counts whoever was drawn"),
        },
    )


def _check_plain(config: RunConfig, keys: Mapping[str, tuple[Any, str]]) -> None:
    """Raise if a key has another value than the one that is given for it, with the reason."""
    for key, (plain, reason) in keys.items():
        if config.value(key) != plain:
            raise ConfigError(key, f"{plain} {reason}", config.value(key))


def _check_secure(config: RunConfig) -> None:
    """Raise if a key looks at single updates, or at figures of single clients, and the run has secure sums."""
    if config.secure == "off":
        return
    why = "with secure = sum, where the server sees no single update"
    refused: dict[str, tuple[object, str]] = {
        "robust-mean": ("none", f"{why}; nothing bounds a client that lies"),
        "max-update-norm": (0, f"{why}; nothing bounds a client that lies"),
        "novel-clients": (0, "with secure = sum: their figures are in the sum of all"),
        "data-changes": ("refuse", "or freeze with secure = sum: weights would be those of data that nobody compares"),
    }
    for key, (plain, reason) in refused.items():
        value = config.value(key)
        if value != plain and (key, value) != ("data-changes", "freeze"):
            raise ConfigError(key, f"{plain} {reason}", value)
    if config.privacy.by_clients:
        expected = "0 with secure = sum, or privacy.mode = distributed, which has the noise in the sum"
        raise ConfigError("privacy.clip", expected, config.privacy.clip)
    if config.lr == "search":
        expected = "a number with secure = sum: a search weighs what single clients reach, and takes many sums"
        raise ConfigError("lr", expected, config.lr)
    if config.compress.name not in ("none", *AGREED_SUPPORT):
        expected = (
            f"{' or '.join(('none', *AGREED_SUPPORT))} with secure = sum: each client would choose its own entries"
        )
        raise ConfigError("compress.name", expected, config.compress.name)
    least = max(3, config.secure_colluders + 2)
    for key, clients in (("clients", config.clients), ("clients-per-round", config.clients_per_round)):
        if clients and clients < least:
            raise ConfigError(key, f"at least {least} with secure = sum and secure-colluders", clients)
    if 2 ** (config.secure_bits - 1) - 1 <= (config.clients_per_round or config.clients) * config.oversample:
        clients = config.clients_per_round or config.clients
        raise ConfigError("secure-bits", f"32 for {clients} clients in a round", config.secure_bits)


def _check_final_model(config: RunConfig) -> None:
    """Raise if the best models of a run are asked for and cannot be known."""
    if config.final_model == "best" and (why := why_no_best(config)):
        raise ConfigError("final-model", f"last with {why}", config.final_model)


def in_simulated_time(config: RunConfig) -> bool:
    """Return whether a profile of devices decides which uploads count."""
    return bool(config.devices) and (config.oversample > 1 or config.deadline > 0)


def _check_simulated_time(config: RunConfig) -> None:
    """Raise if which uploads count would follow from simulated seconds, and that breaks what a run promises."""
    if not in_simulated_time(config):
        return
    acts = "with oversample or deadline, which then act in simulated time:"
    if config.secure != "off":
        raise ConfigError("devices", f"nothing {acts} a secure sum has no upload to leave out", config.devices)
    if config.privacy.central:
        why = "the bytes of an upload decide, and they have no noise"
        raise ConfigError("devices", f"nothing {acts} with privacy.mode = central {why}", config.devices)


def check_real_time(config: RunConfig) -> None:
    """Raise if simulated seconds would decide in a deployment, whose clients take real ones.

    Raises:
        ConfigError: See above.
    """
    if in_simulated_time(config):
        expected = "nothing in a deployment with oversample or deadline, which are of real time there"
        raise ConfigError("devices", f"{expected} (sepal run and Flower's simulation take it)", config.devices)


def _check_round(config: RunConfig) -> None:
    """Raise if the keys that say who is asked in a round, and how long it waits, do not go together."""
    clients_known = "clients" in config.model_fields_set or config.dataset not in ("folder", "hf")  # else owners
    if clients_known and config.clients and config.clients_per_round > config.clients:
        raise ConfigError("clients-per-round", f"at most clients = {config.clients}", config.clients_per_round)
    if config.oversample > 1 and not config.clients_per_round:
        raise ConfigError("oversample", "1 with clients-per-round = 0, which asks all", config.oversample)
    if config.roster == "drawn" and not config.clients_per_round:
        raise ConfigError("roster", "closed or open with clients-per-round = 0, which asks all", config.roster)
    if config.roster == "drawn" and config.novel_clients:
        raise ConfigError("roster", "closed or open with novel-clients, who are drawn from all", config.roster)
    if config.deadline > config.timeout and not config.devices:  # then it is no time to wait
        raise ConfigError("deadline", f"at most timeout = {config.timeout:g}", config.deadline)
    clients = config.clients_per_round or config.clients
    if clients_known and clients and config.min_replies > clients:
        raise ConfigError("min-replies", f"at most the {clients} clients of a round", config.min_replies)
