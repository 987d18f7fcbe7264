"""Settings: one value, from flags, the environment, a TOML file and defaults."""

from assigner.settings.loading import Loaded, load
from assigner.settings.model import (
    HttpSection,
    InstanceSection,
    KafkaSection,
    MetricsSection,
    QuotaSection,
    Settings,
    StoreSection,
)

__all__ = [
    "HttpSection",
    "InstanceSection",
    "KafkaSection",
    "Loaded",
    "MetricsSection",
    "QuotaSection",
    "Settings",
    "StoreSection",
    "load",
]
