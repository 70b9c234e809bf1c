"""The live view of a reply: text styled as it comes, above one row of figures."""
