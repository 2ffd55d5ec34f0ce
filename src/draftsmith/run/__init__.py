"""The map in code: how the rooms work together. Nothing else wires them; one module per group of commands."""
