"""What a person asks for, end to end."""
