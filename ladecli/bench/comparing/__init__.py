"""Two benchmarks side by side: what changed between them, and whether it is more than noise."""
