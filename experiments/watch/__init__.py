"""What does every token of a real run weigh? The reader's script, watched as it is."""
