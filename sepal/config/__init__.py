"""Configuration: all run-config keys, and their validation."""

from sepal.config.base import (
    AUTO,
    NotNegativeOrAuto,
    PositiveOrAuto,
    Settings,
    ShareOrAuto,
    auto,
    flatten,
    kebab,
    key_types,
    marked,
    method_name,
    plainly,
    validate,
)
from sepal.config.data import (
    Corruption,
    FolderReading,
    FolderSettings,
    HubReading,
    HubSettings,
    OwnSettings,
    PartitionSettings,
    SplitSettings,
)
from sepal.config.groups import CapacitySettings, EvaluateSettings, PrivacySettings
from sepal.config.parse import Flat, parse
from sepal.config.run import AUTOMATIC, PARTS, RunConfig

__all__ = [
    "AUTO",
    "AUTOMATIC",
    "PARTS",
    "CapacitySettings",
    "Corruption",
    "EvaluateSettings",
    "Flat",
    "FolderReading",
    "FolderSettings",
    "HubReading",
    "HubSettings",
    "NotNegativeOrAuto",
    "OwnSettings",
    "PartitionSettings",
    "PositiveOrAuto",
    "PrivacySettings",
    "RunConfig",
    "Settings",
    "ShareOrAuto",
    "SplitSettings",
    "auto",
    "flatten",
    "kebab",
    "key_types",
    "marked",
    "method_name",
    "parse",
    "plainly",
    "validate",
]
