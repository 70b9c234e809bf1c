"""What is kept of an answer: its trace, replayed and inspected, and its picture."""
