"""Settings: one value, from flags, the environment, a TOML file and defaults."""

from assigner.settings.loading import Loaded, load
from assigner.settings.model import (
    InstanceSection,
    KafkaSection,
    MetricsSection,
    QuotaSection,
    Settings,
    StoreSection,
)
from assigner.web.settings import HttpSettings

__all__ = [
    "HttpSettings",
    "InstanceSection",
    "KafkaSection",
    "Loaded",
    "MetricsSection",
    "QuotaSection",
    "Settings",
    "StoreSection",
    "load",
]
