"""The one path from a profile to an outcome.

Knows: the floor. Must not know: any backend, any file format, who calls.
Called by: linux, backends, api.
"""
