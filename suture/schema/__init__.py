"""What is declared in public before any row is read: columns and their bounds, rules, messages."""
