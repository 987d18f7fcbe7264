"""Loads the settings from flags, the environment, a TOML file and defaults into one checked value.

The modules in order: `catalog` lists every setting once, with its meaning, rule and other names; flags, environment,
schema and the reference page are generated from it. `rules` are the constraints of values; `model` is the checked
result, one section per part of the service; `sources` reads layers; `upstream` translates the environment of the
upstream assigner; `loading` merges the layers into `Settings`, keeping their origins; `rendering` prints them.

It may import the settings sections of the packages it configures, and no other code of theirs. Not promised: that an
unknown key is ignored. It is an error that names the nearest known key.
"""

from assigner.settings.loading import Loaded, load
from assigner.settings.model import (
    InstanceSection,
    KafkaSection,
    MetricsSection,
    QuotaSection,
    Settings,
    StoreSection,
)
from assigner.web import HttpSettings

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
