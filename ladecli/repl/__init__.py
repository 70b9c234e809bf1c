"""The parts of a chat: what is typed, what it means, and the conversation that it makes."""
