"""What runs do now: their states, following and watching them, freeing their space."""
