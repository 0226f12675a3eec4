"""Speed as ratios: each figure beside its baseline, measured in the same run."""
