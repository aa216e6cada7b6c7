"""What a caller of the engine decides: files, flags, names, defaults.

Knows: the machine's names for things. Must not know: how anything is enforced.
Called by: api and cli.
"""
