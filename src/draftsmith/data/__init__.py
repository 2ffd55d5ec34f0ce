"""Conversations in, tokens and a loss mask that can be trusted out; kept in a memory-mapped store."""
