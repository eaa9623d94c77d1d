"""What a watch found, for people and machines: verdict, report, text, page, words."""
