"""Options of both ends of a connection: they have to agree, so they stand together.

A peer whose machine vanished sends nothing, not even a reset: pings find it out. A server that does not
expect pings closes the connection for sending too many, hence the second list.
"""

from __future__ import annotations

_LIMITS: list[tuple[str, int]] = [
    # One long trajectory may exceed the usual 1 MB of a message, and gRPC's default limit of 4 MiB.
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
]

CLIENT_OPTIONS: list[tuple[str, int]] = [
    *_LIMITS,
    # Processes of a job talk to each other directly, also where http_proxy is set.
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A connection of its own for each channel: a new attempt starts without the back-off of the last one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *_LIMITS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Two servers on one port would share its connections without either noticing.
    ("grpc.so_reuseport", 0),
]
