"""The native backend: kernel isolation at the price of a fork, with no daemon and nothing but Python installed."""
