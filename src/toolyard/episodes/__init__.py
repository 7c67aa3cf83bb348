"""What sessions leave behind: episodes, their steps, and the file that keeps them."""
