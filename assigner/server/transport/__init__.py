"""HTTP/2 and gRPC below the services: connections, calls, and limits that protect the event loop.

What belongs here knows bytes, streams and statuses, and nothing of groups. It may import `aio`, `proto`, `errors`,
`clock` and `logs`. The private attributes of grpclib and h2 that we use are used here.

`listener` accepts sockets, `admission` counts them before TLS begins, `open_files` bounds them; `tls` reloads
certificates. `connection` speaks HTTP/2 with one peer, by grpclib's and h2's classes as `http2` changes them, and
`traffic` counts what it does; `send_buffers` bounds what it leaves unread. `calls` accepts or refuses a call, reads its
request through `codec`, and sends its replies, long ones in pieces; `fair_turns` shares the loop between connections,
`status` turns an error into a status. `standard_services` are health and reflection.

Not promised: fairness between calls of one connection.
"""
