"""From recorded runs to the first difference and its cause."""
