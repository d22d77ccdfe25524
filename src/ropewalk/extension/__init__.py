"""Change the rotation of an existing model: here, the operator that computes it."""

from ropewalk.extension.attach import Attached, attach

__all__ = ["Attached", "attach"]
