"""One file for each way to confine. Backends do not know each other.

Knows: the engine's seam and what Linux backends share. Must not know: callers, other backends.
Called by: api.
"""
