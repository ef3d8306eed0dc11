"""Measurements of an engine in this process, one arm beside another.

    prompts        what is asked
    arms           arms in turn, trial by trial
    trial          one arm, once, and its figures
    summary        all trials of an arm
    agreement      whether the arms said the same
    context_write  the context write alone, by both paths
    accept_lengths                      what `dspark eval` measures
    throughput, speculation, stacked    what `dspark bench` measures
    against_transformers                the same prompts through transformers' generate
    profile, profiling                  where the time of a round goes; made of
    rig, steady, traffic, bandwidth     ... parts, whole rounds, bytes to be read, and how fast
    greedy_identity                     what `dspark verify` proves
    running        loads the models, does one of these, and says where

Importing this package, `prompts`, `columns`, `statistics` or `circumstances` loads no torch.
"""
