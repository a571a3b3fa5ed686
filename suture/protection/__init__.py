"""What a payload becomes on the wire."""
