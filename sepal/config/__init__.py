"""Configuration: all run-config keys, and their validation."""

from sepal.config.base import Settings, flatten, kebab, plainly, validate
from sepal.config.data import Corruption, OwnSettings, PartitionSettings, SplitSettings
from sepal.config.parse import Flat, parse
from sepal.config.run import AUTOMATIC, PARTS, CapacitySettings, EvaluateSettings, PrivacySettings, RunConfig

__all__ = [
    "AUTOMATIC",
    "PARTS",
    "CapacitySettings",
    "Corruption",
    "EvaluateSettings",
    "Flat",
    "OwnSettings",
    "PartitionSettings",
    "PrivacySettings",
    "RunConfig",
    "Settings",
    "SplitSettings",
    "flatten",
    "kebab",
    "parse",
    "plainly",
    "validate",
]
