"""The benchmarks' pure parts, and that they run for real. Nothing here looks at how fast anything was."""
