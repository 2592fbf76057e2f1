"""
A lock coordinator: programs in any language take locks through it, as leases, by gRPC or HTTP.

`manage.py zklock serve` runs it. The distribution `zklock-client` is a client for Python, which needs no Django.
"""
