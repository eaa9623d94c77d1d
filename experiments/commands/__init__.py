"""What the command line does with experiments: run several, print how they go, publish and verify their bags."""
