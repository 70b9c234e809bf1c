"""Several ranks decode one text together; this file imports nothing."""
