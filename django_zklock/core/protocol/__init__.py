"""
The protocol of a lock on ZooKeeper. It runs on the protocol's thread.

Other threads only make a contender, post calls to it, and read its grant.
`tests/contract/locks/test_protocol_thread.py` lists what they may call.
"""
