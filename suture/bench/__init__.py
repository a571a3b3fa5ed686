"""Speed side by side with what a user would pick instead; needs the optional extras it compares with."""
