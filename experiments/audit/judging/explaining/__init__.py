"""What may be behind a difference, one kind of evidence each; `explanation` asks them in turn."""
