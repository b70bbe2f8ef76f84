"""The inside of a rank: its place, what it records, and how all ranks agree to stop."""
