"""The ranks' records of a run put together: what was stepped with, and what every token weighed."""
