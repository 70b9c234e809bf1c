"""Tests that need a GPU: `LADE_TEST_GPU=1 python -m pytest tests/gpu`; skipped elsewhere."""
