"""The refusal of weights that are 0 at first, by methods that could never train them."""

from __future__ import annotations

from sepal.errors import ConfigError, ModelError
from sepal.layout import Role
from sepal.method import RunSetup


def refuse_zero_weights(setup: RunSetup, why: str, key: str = "", expected: str = "") -> None:
    """Refuse a model of which a weight is all 0 in W_0, such as B of LoRA's adapters.

    Args:
        setup: The run's.
        why: Why the method does not train such a weight.
        key: The method's key by which it does; empty: none, and LoRA or the model is refused.
        expected: The key's value that is expected.

    Raises:
        ConfigError: ``key`` has another value; or adapters are trained, whose B is 0 at first.
        ModelError: A weight of the model is 0 at first.
    """
    zero = [p.name for p in setup.layout if p.role is Role.WEIGHT and p.size and not setup.weights[p.name].any()]
    if not zero:
        return
    method, rank = setup.config.method, setup.config.lora.rank
    among = f"{zero[0]} is all 0 at first" + (f", and {len(zero) - 1} more" if len(zero) > 1 else "")
    if key:
        raise ConfigError(key, f"{expected}: {why}", f"a model where {among}")
    if rank:
        raise ConfigError("lora.rank", f"0 with {method}: {why}", f"{rank}, with which {among}")
    raise ModelError(
        "model", f"one without a weight that is all 0 at first: {why}", f"{setup.config.model}, where {among}"
    )
