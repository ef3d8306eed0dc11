"""Making a draft for a target: what `dspark train` does.

    config     what is asked for, resolved from settings by the server
    begun      the settings that a folder was begun with
    prompts    prompts with a name each, and a side of the split
    own_prompts, turns   prompts that the target writes itself, in a file that grows
    answers    what the target says to them, in a file that grows
    keeping    hidden states of answers, kept while the engine answers
    hidden     the same read afterwards, of sequences that nobody kept
    states     which of the two, and where they lie
    design     the shape of the draft, where nothing else is said that of the target
    learning   the loop over steps: log, validation, checkpoints
    card       the draft's README
    running    all of it in order
    stages     how long each part of it took

Importing this package, `config`, `begun`, `prompts` or `own_prompts` loads no torch.
"""
