"""
Say what is wrong. Pages, commands and JSON show this, and judge nothing by themselves.

`facts` has what is known: the queues, the servers, and the past if an app records it. Each class in `servers`,
`queues`, `holders` and `history` is one cause of trouble: how it is found, its texts, its remedy. `verdict` asks all
of them. `formatting` has the texts about locks and contenders.
"""
