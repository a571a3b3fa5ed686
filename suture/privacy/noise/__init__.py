"""Secret coins and the mechanisms drawn from them."""
