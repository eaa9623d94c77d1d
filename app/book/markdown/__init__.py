"""From Markdown to HTML: see `parser` for the rules in their order, `pieces` for what comes out."""
