"""What the source of installed packages says, read as text and by `ast`: nothing of it is ever run."""
