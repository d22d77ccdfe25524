"""The errors every floor raises: one class per kind, each message one line.

A message names the argument, the rule it broke, the value received and, where there is one, the
remedy.
"""

from __future__ import annotations


class RopewalkError(Exception):
    """Base of every error that a user of ropewalk can cause."""


class ConfigError(RopewalkError, ValueError):
    """A setting is outside its range, unknown, or does not fit the others."""


class ShapeError(RopewalkError, ValueError):
    """A tensor has the wrong shape or dtype for the call."""


class CheckpointError(RopewalkError, ValueError):
    """A saved model cannot be written, or cannot be loaded as what it claims to be."""


class DataError(RopewalkError, ValueError):
    """A text source is missing, empty or not text."""


class RopeConfigWarning(UserWarning):
    """An entry of a config is stored and read by nobody, or an absent one has a stand-in."""
