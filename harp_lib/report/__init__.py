"""What notebooks share: stored rows as frames, intervals, the rule of claims, and how all looks."""
