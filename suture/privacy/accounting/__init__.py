"""What events cost, and which noise or how many rounds a budget allows."""
