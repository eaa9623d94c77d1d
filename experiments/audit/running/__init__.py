"""The reader's step on one rank: loaded, run under a plan, listened to, recorded."""
