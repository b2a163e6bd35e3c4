"""Windows that move: state carried from tick to tick, so that a tick costs what entered and left, never the window."""
