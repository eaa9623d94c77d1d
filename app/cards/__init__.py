"""Preview cards: a state's verdict, figure and numbers as one picture, for places where its link is shared."""
