"""What a consortium measures besides a model: tables, regressions, survival, evaluation."""
