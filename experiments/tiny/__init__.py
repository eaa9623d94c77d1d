"""The small Transformer and its tokenizer, which several experiments train and update."""
