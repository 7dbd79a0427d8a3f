"""Speed against peers: the same prompts, greedy, fixed lengths, all in one process and in turns."""
