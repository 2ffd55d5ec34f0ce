"""Templates and word lists of the demo prompts: one module for a family of kinds, each kind a function of a generator
of random numbers that yields prompts (repeats allowed, the caller drops them)."""
