"""What was looked at, in words and numbers, for people."""
