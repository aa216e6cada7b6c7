"""What Linux backends share: how a root file system is put together.

Knows: the floor and the engine's records. Must not know: a backend. Called by: backends, api.
"""
