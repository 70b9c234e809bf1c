"""Commands that consist of one file each."""
