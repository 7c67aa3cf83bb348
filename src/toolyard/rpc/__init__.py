"""Questions and answers between two of our processes over one socket: in both directions, many at once, in parts."""

from toolyard.rpc.connection import OurQuestion, PeerLost, RpcConnection, Serve, TheirQuestion, look_at

__all__ = ["OurQuestion", "PeerLost", "RpcConnection", "Serve", "TheirQuestion", "look_at"]
