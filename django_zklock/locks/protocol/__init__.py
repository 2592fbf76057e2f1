"""
The protocol of a lock on ZooKeeper. It runs on the protocol's thread.

Other threads make a contender, post to it, and read its grant. `tests/contract/locks/test_protocol_thread.py` lists all
that they may call.
"""
