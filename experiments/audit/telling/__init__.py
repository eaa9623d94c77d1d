"""What an audit found, for people and machines: report, text, page, words."""
