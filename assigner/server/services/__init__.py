"""The gRPC services: they check and translate requests, call the interfaces of `assigner.api`, and encode replies.

They decide nothing about groups. They may import `api`, `model`, `proto`, `errors`, `logs` and `server.transport`.

`consumers` serves KafkaAssigner and `admin` serves Admin. `requests` checks what both receive; `offsets` and `loads`
are the calls about offsets and loads. `assignment_encoding` makes stream messages of `model.commands`,
`group_description` the reply to DescribeGroup; both build long messages by protobuf's C runtime.

Not promised: that a request which is refused had every one of its faults named. The first one is.
"""
