"""The dashboard's stream: named facts about one job, each complete in itself, so that the newest one is all one needs.

`facts` computes them from the database, beats and scores; `hub` keeps them fresh while somebody looks and hands each
frame, encoded once, to all viewers; `mailbox` is what waits for one viewer.
"""
