"""What every other package may use: errors, files, text, secrets and statistics."""
