"""Questions and answers between two processes of ours over one socket: both ways, many at once, whole or in parts."""

from toolyard.rpc.connection import OurQuestion, PeerLost, RpcConnection, Serve, TheirQuestion, look_at

__all__ = ["OurQuestion", "PeerLost", "RpcConnection", "Serve", "TheirQuestion", "look_at"]
