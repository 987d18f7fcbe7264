"""Serves classic members (`group.protocol=classic`, the default of every client): their groups are led by an instance.

A gateway decides nothing about such a group. It translates a request, makes the call where the group is led, in this
process or by gRPC, and translates the answer. When the group gets another leader it makes the call there again, so that
a client notices a pause and no error.

- `handlers`: the calls of this protocol alone: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.
- `shared`: what classic groups answer to the calls that groups of both kinds have.
- `forwarding`: finds a group's leader, makes calls there, and makes them again where the next leader is.
- `leaders`: who leads which group, as the leader keys say.
- `connections`: gRPC connections to leaders.

It may import the interfaces of `assigner.api`, the client's connections, storage, and the rest of the gateway. Not
promised: that a call is made once. A JoinGroup of an old version that is made again may leave a member behind that
nobody speaks for, until its session times out.
"""
