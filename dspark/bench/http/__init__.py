"""Measures servers from outside, as their clients see them: `dspark bench serve`.

    backends   the routes that can be asked: bodies out, events in
    calling    one streamed request, and what became of it
    load       many of them: a closed loop of clients, or Poisson arrivals
    server     one server: how it is asked, and what is asked of it before a trial
    turns      servers in turn, trial by trial
    figures    the figures of one trial
    report     the table and the values of all trials

Servers that have the machine to themselves, for `python -m benchmarks.peers.compare`:

    contenders how each is started, from a file
    process    a program that is started, awaited, frozen, stopped
    offline    the same engine without HTTP, for what serving adds
    alone      one after the other in turns: start, warm up, ask, stop
    standings  the tables and the values

For `dspark bench`:

    front      what the server adds to a round, with an engine that replays
    grammar    the grammars that answers are held to

Nothing here loads torch, so that the client takes little from the machine that it measures.
"""
