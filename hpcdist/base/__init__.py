"""The foundations that every other package may use: errors, files, text, secrets, statistics."""
