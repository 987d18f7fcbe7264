"""Settings: one value, from flags, the environment, a TOML file and defaults."""

from assigner.settings.loading import Loaded, load
from assigner.settings.model import (
    HttpSection,
    InstanceSection,
    KafkaSection,
    MetricsSection,
    Settings,
    StoreSection,
)

__all__ = [
    "HttpSection",
    "InstanceSection",
    "KafkaSection",
    "Loaded",
    "MetricsSection",
    "Settings",
    "StoreSection",
    "load",
]
