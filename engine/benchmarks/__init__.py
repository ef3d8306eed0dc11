"""Measurements of an engine in this process, one arm beside another.

    prompts        what is asked
    arms           arms in turn, trial by trial
    trial          one arm, once, and its figures
    summary        all trials of an arm
    agreement      whether the arms said the same
    context_write  the context write alone, by both paths
    accept_lengths                      what `dspark eval` measures
    throughput, speculation, stacked    the three things that `dspark bench` measures
    greedy_identity                     what `dspark verify` proves
    running        loads the models, does one of these, and says where

Importing this package, or `prompts`, loads no torch.
"""
