"""How much one request may bring, in one place for every door."""

MAX_BODY = 64 * 1024 * 1024
"""Bytes of one request body."""
MAX_RANKS = 4_096
MAX_CELLS = 1_000_000
MAX_EXACT_CELLS = 4_096
"""Up to this many cells answers carry exact fractions."""
MAX_LISTED_CELLS = 10_000
"""Above this many cells answers leave out lists with one entry a cell."""
LONGEST_ADDRESS = 8_000
"""So many characters of address, after the path, can be handed on as a link."""
