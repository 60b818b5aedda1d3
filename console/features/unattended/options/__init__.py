"""What this feature adds to commands of the core."""
