"""The laboratory (extra `gpu`): what a GPU really does, measured."""
